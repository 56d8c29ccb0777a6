#include "tools/cli/train_command.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/launch/launch.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/vote.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "schedule/simulate.h"
#include "schedule/traces/chrome_trace.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/launched.h"
#include "tools/cli/messages.h"
#include "tools/cli/report.h"
#include "tools/cli/run_options.h"
#include "tools/cli/saved_run.h"
#include "tools/cli/stop_signal.h"
#include "tools/cli/training.h"

namespace stagecoach::tools {
namespace {

// What would otherwise surface late, or as the kernel's killing the process.
absl::Status CheckRun(const RunOptions& options, const Run& run) {
  if (!options.checkpoints.empty()) {
    RETURN_IF_ERROR(base::Annotate(base::MakeFolders(options.checkpoints), "--checkpoint"));
    RETURN_IF_ERROR(base::CheckWritable(absl::StrCat(options.checkpoints, "/step")));
  }
  for (const std::string& path : {options.trace, options.simulated_trace}) {
    if (!path.empty()) RETURN_IF_ERROR(base::CheckWritable(path));
  }
  return CheckHasMemoryFor(run.prepared, {.saves = !options.checkpoints.empty()});
}

base::Deadline DeadlineOf(const RunOptions& options) {
  return base::Deadline::After(LongestWait(options));
}

// Simulates a step at the times that were measured.
absl::StatusOr<schedule::Trace> SimulateStep(engine::Trainer& trainer) {
  ASSIGN_OR_RETURN(const schedule::Costs costs, trainer.MeasuredCosts());
  const partition::LoweredPlan& lowered = trainer.run().lowered;
  ASSIGN_OR_RETURN(schedule::Simulation simulation,
                   schedule::Simulate(lowered.training, costs,
                                      {.sends = SendsOf(lowered.transfers), .keep_trace = true}));
  return std::move(simulation.trace);
}

absl::Status WriteTraces(const RunOptions& options, engine::Trainer& trainer) {
  if (!WantsTraces(options) || trainer.steps() == 0) return absl::OkStatus();
  if (!options.trace.empty()) {
    ASSIGN_OR_RETURN(const schedule::Trace measured, trainer.LastTrace());
    RETURN_IF_ERROR(schedule::WriteTrace(measured, options.trace));
  }
  if (!options.simulated_trace.empty()) {
    ASSIGN_OR_RETURN(const schedule::Trace simulated, SimulateStep(trainer));
    RETURN_IF_ERROR(schedule::WriteTrace(simulated, options.simulated_trace));
  }
  return absl::OkStatus();
}

// For a process other than that of rank 0, which alone reports.
class SilentReport final : public Report {
 public:
  void Start(const Run& /*run*/) override {}
  void Step(const engine::FitProgress& /*progress*/) override {}
  void Epoch(const engine::EpochResult& /*result*/) override {}
  void Resumed(const engine::RestoredCheckpoint& /*checkpoint*/) override {}
  void Saved(const engine::SaveReport& /*save*/) override {}
  void End(const Run& /*run*/, const Outcome& /*outcome*/) override {}
};

std::unique_ptr<Report> ReportFor(const RunOptions& options) {
  if (options.rank.value_or(0) > 0) return std::make_unique<SilentReport>();
  return options.json ? MakeJsonReport(options.explain)
                      : MakeTextReport(options.epochs, options.explain);
}

// Whether there is a checkpoint to go on from, whose options `options` then has, which are those
// that `flags` fill.
absl::StatusOr<bool> FindCheckpoint(CLI::App& flags, RunOptions& options) {
  if (options.checkpoints.empty()) return false;
  if (!options.resume) {
    ASSIGN_OR_RETURN(const std::vector<engine::FoundCheckpoint> found,
                     From(Origin::kConfiguration, engine::ListCheckpoints(options.checkpoints)));
    if (found.empty()) return false;
    return From(Origin::kConfiguration, absl::AlreadyExistsError(absl::StrCat(
                                            options.checkpoints,
                                            " has checkpoints of a run: --resume goes on with it; "
                                            "for another run, name another folder")));
  }
  std::vector<absl::Status> passed_over;  // Restore finds them again, and they are reported then
  const absl::StatusOr<engine::Checkpoint> newest =
      engine::OpenNewest(options.checkpoints, passed_over);
  if (absl::IsNotFound(newest.status()) && passed_over.empty()) {
    PrintNotice(absl::StrCat("there is no checkpoint in ", options.checkpoints,
                             " yet: the run starts at its beginning"));
    return false;
  }
  RETURN_IF_ERROR(From(Origin::kData,
                       newest.ok() || passed_over.empty() ? newest.status() : passed_over.front()));
  RETURN_IF_ERROR(
      From(Origin::kConfiguration, TakeSavedOptions(flags, newest->manifest(), options)));
  return true;
}

// Where the run goes on: at its beginning, if there is no checkpoint.
absl::StatusOr<engine::DataPosition> Resume(const RunOptions& options, const Run& run,
                                            engine::Trainer& trainer, Report& report) {
  ASSIGN_OR_RETURN(const engine::RestoredCheckpoint restored, trainer.Restore(options.checkpoints));
  for (const absl::Status& status : restored.passed_over) {
    PrintNotice(absl::StrCat("passes over a checkpoint: ", status.message()));
  }
  const std::string changes = DescribeChanges(restored.manifest, options, run);
  if (!changes.empty()) {
    PrintNotice(absl::StrCat("the results will not be those of the run that was saved: ", changes));
  }
  report.Resumed(restored);
  return restored.manifest.position;
}

// `resumes`: from a checkpoint. `rendezvous`: with the other processes of the run; null if there is
// one.
absl::StatusOr<int> TrainOnDevices(const CLI::App& flags, const RunOptions& options, bool resumes,
                                   engine::Rendezvous* rendezvous) {
  ASSIGN_OR_RETURN(const Run run, MakeRun(options));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CheckRun(options, run)));
  const std::unique_ptr<Report> report = ReportFor(options);
  StopOnSignals();
  report->Start(run);
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Trainer> trainer,
                   From(Origin::kConfiguration, MakeTrainer(options, run, rendezvous)));
  engine::DataPosition start;
  if (resumes) {
    ASSIGN_OR_RETURN(start, From(Origin::kData, Resume(options, run, *trainer, *report)));
  }
  engine::Vote stop(rendezvous, {.wanted = StopRequested, .deadline = LongestWait(options)});
  AutomaticSaves automatic(rendezvous, LongestWait(options));
  engine::CheckpointOptions checkpoints = CheckpointOptionsOf(flags, options, run, automatic);
  checkpoints.on_save = [&](const engine::SaveReport& save) {
    automatic.Saved(save);
    report->Saved(save);
    if (save.path.ok()) return;
    PrintNotice(absl::StrCat("the run goes on, but was not saved after step ", save.step, ": ",
                             save.path.status().message()));
  };
  const absl::Time begin = absl::Now();
  Outcome outcome;
  absl::StatusOr<engine::FitResult> fit =
      Fit(*trainer, run.data,
          {.epochs = options.epochs,
           .seed = options.seed,
           .start = std::move(start),
           .checkpoints = std::move(checkpoints),
           .stop = [&] { return stop.Passes(); },
           .on_step = [&](const engine::FitProgress& progress) { report->Step(progress); },
           .on_epoch = [&](const engine::EpochResult& result) { report->Epoch(result); }});
  // Before the trainer goes, which takes leave of ranks that may still wait for this one.
  if (!fit.ok() && rendezvous != nullptr) rendezvous->Fail(fit.status(), DeadlineOf(options));
  ASSIGN_OR_RETURN(outcome.fit, std::move(fit));
  outcome.elapsed = absl::Now() - begin;
  ASSIGN_OR_RETURN(outcome.devices, trainer->Devices());
  ASSIGN_OR_RETURN(outcome.parameters_hash, trainer->ParametersHash());
  report->End(run, outcome);
  RETURN_IF_ERROR(From(Origin::kConfiguration, WriteTraces(options, *trainer)));
  RETURN_IF_ERROR(From(Origin::kOutput, outcome.fit.last_save));
  return outcome.fit.stopped ? kExitInterrupted : kExitOk;
}

absl::StatusOr<int> Train(CLI::App& flags, RunOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<engine::Launch> launch,
                   From(Origin::kUsage, engine::FindLaunch()));
  const absl::StatusOr<bool> resumes = FindCheckpoint(flags, options);
  if (launch.has_value()) {
    return WorkAsRank(*launch, options, resumes.status(),
                      [&](const RunOptions& own, engine::Rendezvous& rendezvous) {
                        return TrainOnDevices(flags, own, *resumes, &rendezvous);
                      });
  }
  RETURN_IF_ERROR(resumes.status());
  return TrainOnDevices(flags, options, *resumes, nullptr);
}

}  // namespace

Command AddTrainCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("train", "Train a model that is spread over devices");
  const auto options = std::make_shared<RunOptions>();
  AddPlanFlags(*flags, *options);
  AddTrainingFlags(*flags, *options);
  return {flags, [flags, options] { return Train(*flags, *options); }};
}

}  // namespace stagecoach::tools
