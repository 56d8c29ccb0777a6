#include "tools/stagecoach/replay/replay_plans.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/session/machine/machine.h"
#include "engine/session/training.h"
#include "schedule/io/schedule_file.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/flags/saved_options.h"
#include "tools/stagecoach/terminal/exit_status.h"

namespace stagecoach::tools {
namespace {

// Flags of both times. What else there is says how the second one is to differ.
constexpr const char* kOfBothTimes[] = {"--data",     "--device", "--precision", "--gpus",
                                        "--exchange", "--tuning", "--timeout"};

bool HasFlag(const CLI::App& flags, const std::string& name) {
  return flags.get_option(name)->count() > 0;
}

// Those that the run was saved with, its plan included: the plan's flags may have named files, or
// left it to a search or to a launcher that had lost a process.
absl::StatusOr<engine::RunConfig> SavedOptions(const CLI::App& flags,
                                               const engine::Manifest& manifest) {
  engine::RunConfig options;
  CLI::App train;
  AddTrainFlags(train, options);
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
  options.cluster_file.clear();  // the budgets of its devices decide no bits
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
  ASSIGN_OR_RETURN(first.options, SavedOptions(flags, manifest));
  absl::StatusOr<engine::TrainingRun> run = MakeRun(first.options);
  if (ExitStatusOf(run.status()) == kExitBadData) {
    return base::WithClass(
        base::ErrorClass::kData,
        absl::Status(run.status().code(), absl::StrCat(run.status().message(),
                                                       "; if the run's data have moved, say with "
                                                       "--data where they are")));
  }
  ASSIGN_OR_RETURN(first.run, std::move(run));
  first.options.device.kind = engine::Name(first.run.prepared.device.kind);
  return first;
}

// Whether flags say how the second plan is to be.
bool NamesPlan(const CLI::App& flags) {
  const auto named = {"--devices",         "--tensor",   "--replicas",
                      "--shard-optimizer", "--schedule", "--chunks"};
  return std::any_of(named.begin(), named.end(),
                     [&](const char* name) { return HasFlag(flags, name); });
}

// The same but for the plan and where it is performed.
engine::RunConfig OptionsOfSecond(const CLI::App& flags, const engine::RunConfig& given,
                                  const OneTime& first) {
  engine::RunConfig second = first.options;
  second.takes_fingerprint = false;  // its data are those of the first
  const partition::Plan& plan = first.run.prepared.plan();
  second.device_memory_bytes = given.device_memory_bytes;
  second.cluster_file = given.cluster_file;
  if (HasFlag(flags, "--threads-per-device")) second.device.threads = given.device.threads;
  // The bits of a library's sum are those of one plan.
  const bool depends_on_plan = plan.replication.reduction == partition::ReductionKind::kRing;
  if (depends_on_plan && !NamesPlan(flags)) return second;
  second.plan.reset();
  second.profile = "analytic";
  second.stages = given.stages;
  second.tensor_parts = given.tensor_parts;
  second.replicas =
      depends_on_plan && !HasFlag(flags, "--replicas") ? plan.replicas() : given.replicas;
  second.shards_optimizer = given.shards_optimizer;
  second.offloads_optimizer = given.offloads_optimizer;
  second.schedule = given.schedule;
  second.chunks = given.chunks;
  second.batch = plan.batch_rows();
  second.micro_batches = plan.micro_batches();
  second.gradient_blocks = plan.replication.gradient_blocks;
  second.reduction =
      second.replicas > 1 ? plan.replication.reduction : partition::ReductionKind::kTree;
  return second;
}

absl::Status CheckRoom(const engine::TrainingRun& run) {
  return CheckHasMemoryFor(run.prepared, {.saves = true});
}

// On the fewest devices that have the memory, unless flags say on how many.
absl::StatusOr<OneTime> PrepareSecond(const CLI::App& flags, const engine::RunConfig& given,
                                      const OneTime& first) {
  OneTime second = {.options = OptionsOfSecond(flags, given, first)};
  engine::RunConfig& options = second.options;
  const bool is_settled = options.plan.has_value() || options.stages.has_value() ||
                          schedule::IsScheduleFile(options.schedule);
  const int most = is_settled ? 1 : first.run.prepared.plan().num_layers;
  const auto make = [&](int stages) -> absl::StatusOr<engine::TrainingRun> {
    if (!is_settled) options.stages = stages;
    if (!HasFlag(flags, "--threads-per-device") &&
        (options.stages.has_value() || options.cluster.has_value())) {
      const int devices = options.stages.has_value()
                              ? *options.stages * options.replicas * options.tensor_parts
                              : options.cluster->size();
      ASSIGN_OR_RETURN(options.device, ShareProcessors(options, devices));
    }
    ASSIGN_OR_RETURN(engine::TrainingRun run, MakeRun(options));
    RETURN_IF_ERROR(CheckRoom(run));
    return run;
  };
  ASSIGN_OR_RETURN(options.cluster, ReadCluster(options));
  ASSIGN_OR_RETURN(second.run, engine::OverFewestDevices(most, make));
  second.run.data = first.run.data;  // once in memory
  return second;
}

}  // namespace

absl::StatusOr<ReplayTimes> PrepareReplay(const CLI::App& flags, const engine::RunConfig& given,
                                          const engine::Manifest& manifest) {
  ReplayTimes times;
  ASSIGN_OR_RETURN(times.first, PrepareFirst(flags, manifest));
  RETURN_IF_ERROR(CheckRoom(times.first.run));
  ASSIGN_OR_RETURN(times.second, PrepareSecond(flags, given, times.first));
  return times;
}

}  // namespace stagecoach::tools
