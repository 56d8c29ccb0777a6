#include "tools/cli/replay_plans.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/files/schedule_file.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/machine.h"
#include "tools/cli/saved_run.h"
#include "tools/cli/training.h"

namespace stagecoach::tools {
namespace {

// Flags of both times. What else there is says how the second one is to differ.
constexpr const char* kOfBothTimes[] = {"--data",     "--device", "--precision", "--gpus",
                                        "--exchange", "--tuning", "--deadline"};

bool HasFlag(const CLI::App& flags, const std::string& name) {
  return flags.get_option(name)->count() > 0;
}

// Those that the run was saved with, its plan included: the plan's flags may have named files, or
// left it to a search or to a launcher that had lost a process.
absl::StatusOr<RunOptions> SavedOptions(const CLI::App& flags, const engine::Manifest& manifest) {
  RunOptions options;
  CLI::App train;
  AddPlanFlags(train, options);
  AddTrainingFlags(train, options);
  for (const char* const name : kOfBothTimes) {
    if (HasFlag(flags, name)) {
      RETURN_IF_ERROR(TakeSavedOption(
          train, {.name = name, .value = flags.get_option(name)->results().back()}));
    }
  }
  // Not "auto", by which the two times might be on devices of two kinds, whose bits differ.
  if (!HasFlag(flags, "--device")) {
    RETURN_IF_ERROR(TakeSavedOption(train, {"--device", manifest.device}));
  }
  RETURN_IF_ERROR(TakeSavedOptions(train, manifest, options));
  options.plan = manifest.plan.plan;
  options.takes_fingerprint = true;
  if (options.device.kind == "cpu" && manifest.device != "cpu") {
    if (!HasFlag(flags, "--precision")) options.device.precision = "fp32";
    if (!HasFlag(flags, "--gpus")) options.device.gpus.clear();
    if (!HasFlag(flags, "--exchange")) options.device.exchange = "auto";
  }
  return options;
}

absl::StatusOr<OneTime> PrepareFirst(const CLI::App& flags, const engine::Manifest& manifest) {
  OneTime first;
  ASSIGN_OR_RETURN(first.options, From(Origin::kConfiguration, SavedOptions(flags, manifest)));
  absl::StatusOr<Run> run = MakeRun(first.options);
  if (ExitStatusOf(run.status()) == kExitBadData) {
    return From(Origin::kData, absl::Status(run.status().code(),
                                            absl::StrCat(run.status().message(),
                                                         "; if the run's data have moved, say with "
                                                         "--data where they are")));
  }
  ASSIGN_OR_RETURN(first.run, std::move(run));
  first.options.device.kind = engine::Name(first.run.prepared.device.kind);
  return first;
}

// Whether flags say how the second plan is to be.
bool NamesPlan(const CLI::App& flags) {
  const auto named = {"--devices", "--replicas", "--shard-optimizer", "--schedule", "--chunks"};
  return std::any_of(named.begin(), named.end(),
                     [&](const char* name) { return HasFlag(flags, name); });
}

// The same but for the plan and where it is performed.
RunOptions OptionsOfSecond(const CLI::App& flags, const RunOptions& given, const OneTime& first) {
  RunOptions second = first.options;
  second.takes_fingerprint = false;  // its data are those of the first
  const partition::Plan& plan = first.run.prepared.plan;
  second.device_memory_bytes = given.device_memory_bytes;
  if (HasFlag(flags, "--threads-per-device")) second.device.threads = given.device.threads;
  // The bits of a library's sum are those of one plan.
  const bool depends_on_plan = plan.replication.reduction == partition::ReductionKind::kRing;
  if (depends_on_plan && !NamesPlan(flags)) return second;
  second.plan.reset();
  second.profile = "analytic";
  second.stages = given.stages;
  second.replicas =
      depends_on_plan && !HasFlag(flags, "--replicas") ? plan.replicas() : given.replicas;
  second.shards_optimizer = given.shards_optimizer;
  second.schedule = given.schedule;
  second.chunks = given.chunks;
  second.batch = plan.batch_rows();
  second.micro_batches = plan.micro_batches();
  second.gradient_blocks = plan.replication.gradient_blocks;
  second.reduction =
      second.replicas > 1 ? plan.replication.reduction : partition::ReductionKind::kTree;
  return second;
}

absl::Status CheckRoom(const Run& run) {
  return From(Origin::kConfiguration, CheckHasMemoryFor(run.prepared, {.saves = true}));
}

// On the fewest devices that have the memory, unless flags say on how many.
absl::StatusOr<OneTime> PrepareSecond(const CLI::App& flags, const RunOptions& given,
                                      const OneTime& first) {
  OneTime second = {.options = OptionsOfSecond(flags, given, first)};
  RunOptions& options = second.options;
  const bool is_settled = options.plan.has_value() || options.stages.has_value() ||
                          schedule::IsScheduleFile(options.schedule);
  const int most = is_settled ? 1 : first.run.prepared.plan.num_layers;
  absl::Status refusal;
  for (int stages = 1; stages <= most; ++stages) {
    if (!is_settled) options.stages = stages;
    if (!HasFlag(flags, "--threads-per-device") && options.stages.has_value()) {
      options.device.threads =
          std::max(1, InspectMachine().processors / (*options.stages * options.replicas));
    }
    absl::StatusOr<Run> run = MakeRun(options);
    if (run.ok()) {
      RETURN_IF_ERROR(CheckRoom(*run));
      second.run = *std::move(run);
      second.run.data = first.run.data;  // once in memory
      return second;
    }
    if (refusal.ok()) refusal = run.status();
    if (!IsLackOfMemory(run.status())) break;
  }
  return refusal;
}

}  // namespace

absl::StatusOr<ReplayTimes> PrepareReplay(const CLI::App& flags, const RunOptions& given,
                                          const engine::Manifest& manifest) {
  ReplayTimes times;
  ASSIGN_OR_RETURN(times.first, PrepareFirst(flags, manifest));
  RETURN_IF_ERROR(CheckRoom(times.first.run));
  ASSIGN_OR_RETURN(times.second, PrepareSecond(flags, given, times.first));
  return times;
}

}  // namespace stagecoach::tools
