#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/checkpoint/compare.h"
#include "engine/comm/launch.h"
#include "engine/session/process_group.h"
#include "engine/session/replay.h"
#include "engine/session/run_config.h"
#include "engine/session/saved_run.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/flags/saved_options.h"
#include "tools/stagecoach/replay/replay_checkpoint.h"
#include "tools/stagecoach/replay/replay_plans.h"
#include "tools/stagecoach/replay/replay_report.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/scratch_folder.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/values/flag_values.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

// What `replay` asks for.
struct ReplayOptions {
  // The devices and plan of the second time. All else is the checkpoint's, except for flags.
  engine::RunConfig run;
  std::string checkpoint;  // a checkpoint, or the folder of a run
  int64_t steps = 3;
  OutputOptions output;
};

// The first time and the second, and what the run has saved of the same steps.
class Comparison {
 public:
  Comparison(const CLI::App& flags, const ReplayOptions& options, ReplayStart start)
      : flags_(flags), options_(options), start_(std::move(start)) {}

  absl::StatusOr<int> Run() {
    ASSIGN_OR_RETURN(times_, PrepareReplay(flags_, options_.run, start_.checkpoint.manifest()));
    RETURN_IF_ERROR(CheckData(start_.checkpoint.manifest()));
    StopOnSignals();  // from here on there is something to remove
    ASSIGN_OR_RETURN(const std::unique_ptr<ScratchFolder> scratch, ScratchFolder::Make("replay"));
    TellOfOtherConditions();
    report_ = MakeReplayReport(options_.output.json);
    report_->Start(start_, {&times_.first.run.prepared, &times_.second.run.prepared});
    OpenLater();
    ASSIGN_OR_RETURN(const engine::Replayed first, TrainFirst(scratch->path()));
    ASSIGN_OR_RETURN(const engine::Replayed second, TrainSecond(scratch->path()));
    EndComparison end = {.steps = start_.steps,
                         .first_hash = first.parameters_hash,
                         .second_hash = second.parameters_hash};
    ASSIGN_OR_RETURN(end.difference, Compare(first.end, second.end));
    agrees_ = agrees_ && end.difference.empty() && end.first_hash == end.second_hash;
    end.same = agrees_;
    report_->End(end);
    if (!agrees_) return kExitDifferent;
    return is_damaged_ ? kExitBadData : kExitOk;
  }

 private:
  // Replaying on other data shows nothing of the run.
  absl::Status CheckData(const engine::Manifest& manifest) const {
    const std::string other = DescribeOtherData(manifest, times_.first.options, times_.first.run);
    if (other.empty()) return absl::OkStatus();
    return base::DataError(absl::StrCat(other,
                                        "; if the run's data have moved, say with --data where "
                                        "they are"),
                           absl::StatusCode::kFailedPrecondition);
  }

  // What makes other bits than the run had, though the same ones each time.
  void TellOfOtherConditions() const {
    if (start_.steps < options_.steps) {
      PrintNotice(
          absl::StrCat("the run ends after ", start_.steps, " of the ", options_.steps, " steps"));
    }
    const std::string changes = Changes(start_.checkpoint.manifest());
    if (!changes.empty()) {
      PrintNotice(
          absl::StrCat("the results will not be those of the run that was saved: ", changes));
    }
  }

  // In what a checkpoint of the run was made under other conditions than the first time is; "" if
  // in nothing that decides the bits.
  std::string Changes(const engine::Manifest& manifest) const {
    engine::RunConfig told = times_.first.options;
    for (const engine::SavedOption& saved : start_.checkpoint.manifest().options) {
      if (saved.name == "--data") told.data = saved.value;  // wherever that is now
    }
    std::string changes = DescribeChanges(manifest, told, times_.first.run);
    const auto add = [&](const std::string& change) {
      absl::StrAppend(&changes, changes.empty() ? "" : "; ", change);
    };
    const std::string device = engine::Name(times_.first.run.prepared.device.kind);
    if (manifest.device != device) {
      add(absl::StrCat("--device was ", manifest.device, " and is ", device));
    }
    if (!manifest.encoding.EncodesAs(times_.first.run.data.encoding)) {
      add("the data have other columns, classes or statistics");
    }
    const std::string other = DescribeOtherData(manifest, told, times_.first.run);
    if (!other.empty()) add(other);
    return changes;
  }

  // Whatever is wrong with them is for the report.
  void OpenLater() {
    for (const engine::FoundCheckpoint& found : start_.later) {
      absl::StatusOr<engine::Checkpoint> opened = engine::Checkpoint::Open(found.path);
      absl::Status status = opened.status();
      if (opened.ok()) {
        const std::string changes = Changes(opened->manifest());
        if (!changes.empty()) {
          status = absl::FailedPreconditionError(
              absl::StrCat("it was made under other conditions: ", changes));
        } else {
          status = opened->Verify();
        }
      }
      if (status.ok()) {
        later_.push_back(*std::move(opened));
      } else {
        is_damaged_ = is_damaged_ || !absl::IsFailedPrecondition(status);
        report_->Saved({.path = found.path, .step = found.step, .comparable = status});
      }
    }
  }

  absl::StatusOr<engine::Replayed> TrainFirst(const std::string& folder) {
    engine::ReplayTask task = {
        .checkpoint = start_.checkpoint.path(), .steps = start_.steps, .folder = folder + "/first"};
    for (const engine::Checkpoint& later : later_)
      task.compared_steps.insert(later.manifest().step);
    task.on_step = [&](int64_t, const engine::StepResult& result) {
      results_.push_back(result);
      report_->First(std::ssize(results_), start_.steps);
    };
    task.on_saved = [&](const engine::Checkpoint& replayed) { CompareWithLater(replayed); };
    return Replay(times_.first.options, times_.first.run, task);
  }

  void CompareWithLater(const engine::Checkpoint& replayed) {
    for (const engine::Checkpoint& later : later_) {
      if (later.manifest().step != replayed.manifest().step) continue;
      SavedComparison saved = {.path = later.path(), .step = later.manifest().step};
      saved.same_losses =
          later.manifest().position.losses_hash == replayed.manifest().position.losses_hash;
      absl::StatusOr<engine::CheckpointDifference> difference = Compare(replayed, later);
      saved.comparable = difference.status();
      if (difference.ok()) saved.difference = *std::move(difference);
      is_damaged_ = is_damaged_ || !saved.comparable.ok();
      agrees_ = agrees_ && saved.same();
      report_->Saved(saved);
    }
  }

  absl::StatusOr<engine::Replayed> TrainSecond(const std::string& folder) {
    const int64_t before = start_.checkpoint.manifest().step;
    const bool has_norm = times_.first.run.prepared.optimizer.waits_for_norm();
    return Replay(times_.second.options, times_.second.run,
                  {.checkpoint = start_.checkpoint.path(),
                   .steps = start_.steps,
                   .folder = folder + "/second",
                   .on_step = [&](int64_t number, const engine::StepResult& result) {
                     const StepComparison step = {
                         .number = number,
                         .first = results_[static_cast<size_t>(number - before - 1)],
                         .second = result,
                         .has_norm = has_norm};
                     agrees_ = agrees_ && step.same();
                     report_->Step(step);
                   }});
  }

  const CLI::App& flags_;
  const ReplayOptions& options_;
  const ReplayStart start_;
  ReplayTimes times_;
  std::unique_ptr<ReplayReport> report_;
  std::vector<engine::Checkpoint> later_;    // that can be compared with
  std::vector<engine::StepResult> results_;  // of the first time
  bool agrees_ = true;
  bool is_damaged_ = false;  // a later checkpoint
};

absl::StatusOr<int> ReplaySteps(const CLI::App& flags, const ReplayOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<engine::Launch> launch, engine::FindLaunch());
  if (launch.has_value()) {
    return base::UsageError(
        absl::StrCat(DescribeLaunch(*launch),
                     " processes, but a replay is one process, whatever the run was: start it "
                     "without a launcher"));
  }
  ASSIGN_OR_RETURN(ReplayStart start, FindReplayStart(options.checkpoint, options.steps));
  const StopOnHangUp hang_up;
  const absl::StatusOr<int> status = Comparison(flags, options, std::move(start)).Run();
  if (!absl::IsCancelled(status.status())) return status;
  if (!hang_up.has_hung_up()) PrintNotice("stopped by a signal: not all was compared");
  return StatusOfStop();
}

void AddReplayFlags(CLI::App& app, ReplayOptions& options) {
  AddFlag(app, "checkpoint", "DIR", options.checkpoint,
          "A checkpoint, or a run's folder for the newest with enough steps left", ParseFolder)
      ->required();
  AddFlag(app, "--steps", "N", options.steps,
          Describe("Number of steps to train twice", absl::StrCat(options.steps)),
          CountIn(1, kMaxSteps));
  const char* const second = "Pipeline of the second time";
  AddRunFlags(
      app, options.run,
      {{"--data", "The run's data, if they have moved [where they were]", "Options"},
       {"--devices", "Devices to split the model over [the fewest with enough memory]", second},
       {"--tensor", "", second},
       {"--replicas", "", second},
       {"--shard-optimizer", "", second},
       {"--schedule", "", second},
       {"--chunks", "", second},
       {"--device-memory", "", second},
       {"--cluster", "", second},
       {"--device", "Both times: cpu, cuda, or auto: cuda if GPUs suffice [the run's]"},
       {"--threads-per-device", "Cores per CPU device, the second time [an equal share]"},
       {"--precision", "Both times: fp32, tf32 or bf16 [the run's]"},
       {"--gpus"},
       {"--exchange"},
       {"--tuning"},
       {"--timeout", "Abort if a device waits longer than this for another [the run's]"},
       {"--json"}},
      &options.output);
}

}  // namespace

Command AddReplayCommand(CLI::App& app) {
  CLI::App* flags =
      app.add_subcommand("replay", "Train some steps of a saved run twice and compare the bits");
  const auto options = std::make_shared<ReplayOptions>();
  AddReplayFlags(*flags, *options);
  return {flags, [flags, options] { return ReplaySteps(*flags, *options); }};
}

}  // namespace stagecoach::tools
