#include "tools/cli/training_process.h"

#include <CLI/CLI.hpp>
#include <memory>
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
#include "engine/launch/vote.h"
#include "schedule/simulate.h"
#include "schedule/traces/chrome_trace.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/messages.h"
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
  return CheckHasMemoryFor(run.prepared,
                           {.saves = !options.checkpoints.empty(),
                            .keeps = run.prepared.lowered.collectives.results_before_steps});
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
  void WentOn(int64_t /*steps*/, int /*epoch*/) override {}
  void Saved(const engine::SaveReport& /*save*/) override {}
  void End(const Run& /*run*/, const Outcome& /*outcome*/) override {}
};

std::unique_ptr<Report> ReportFor(const RunOptions& options) {
  if (options.rank.value_or(0) > 0) return std::make_unique<SilentReport>();
  return options.json ? MakeJsonReport(options.explain)
                      : MakeTextReport(options.epochs, options.explain);
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

}  // namespace

absl::StatusOr<int> TrainingProcess::Train(const RunOptions& options, const Meeting& meeting) {
  if (!run_.has_value()) RETURN_IF_ERROR(Begin(options));
  const bool goes_on = trainer_ != nullptr || kept_.has_value() || meeting.launch.is_replacement;
  if (goes_on) RETURN_IF_ERROR(LetGo(options, *meeting.rendezvous));
  rendezvous_ = meeting.rendezvous;
  ASSIGN_OR_RETURN(std::unique_ptr<engine::Trainer> trainer,
                   From(Origin::kConfiguration, MakeTrainer(options, *run_, meeting)));
  ASSIGN_OR_RETURN(position_, FindStart(options, goes_on, *trainer));
  trainer_ = std::move(trainer);
  kept_.reset();
  if (supervisor_ != nullptr && trainer_->can_lose_processes()) {
    supervisor_->CanGoOn().IgnoreError();  // it may have ended the run already
  }
  return TrainToTheEnd(options, meeting.launch.restarts, goes_on);
}

absl::Status TrainingProcess::Begin(const RunOptions& options) {
  ASSIGN_OR_RETURN(run_, MakeRun(options));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CheckRun(options, *run_)));
  report_ = ReportFor(options);
  StopOnSignals();
  report_->Start(*run_);
  return absl::OkStatus();
}

absl::Status TrainingProcess::LetGo(const RunOptions& options, engine::Rendezvous& rendezvous) {
  std::optional<engine::Standing> own;
  if (kept_.has_value()) own = {.steps = kept_->steps};
  if (trainer_ != nullptr) {
    own = {.steps = trainer_->steps(), .may_complete = trainer_->may_complete_step()};
  }
  ASSIGN_OR_RETURN(const int64_t steps, AgreeOnStep(rendezvous, own, LongestWait(options)));
  if (trainer_ == nullptr) return absl::OkStatus();
  const bool completes = trainer_->steps() < steps;
  if (completes) RETURN_IF_ERROR(trainer_->CompleteStep());
  ASSIGN_OR_RETURN(kept_, trainer_->Keep());
  if (!completes) kept_->position = position_;
  trainer_.reset();
  return absl::OkStatus();
}

absl::StatusOr<engine::DataPosition> TrainingProcess::FindStart(const RunOptions& options,
                                                                bool goes_on,
                                                                engine::Trainer& trainer) {
  if (goes_on) {
    ASSIGN_OR_RETURN(engine::DataPosition position,
                     trainer.Adopt(kept_.has_value() ? &*kept_ : nullptr));
    report_->WentOn(trainer.steps(), position.epoch);
    return position;
  }
  if (!resumes_) return engine::DataPosition();
  return From(Origin::kData, Resume(options, *run_, trainer, *report_));
}

absl::StatusOr<int> TrainingProcess::TrainToTheEnd(const RunOptions& options, int restarts,
                                                   bool goes_on) {
  engine::Vote stop(rendezvous_.get(), {.wanted = StopRequested, .deadline = LongestWait(options)});
  AutomaticSaves automatic(rendezvous_.get(), LongestWait(options), restarts);
  engine::CheckpointOptions checkpoints = CheckpointOptionsOf(flags_, options, *run_, automatic);
  checkpoints.on_save = [&](const engine::SaveReport& save) {
    automatic.Saved(save);
    report_->Saved(save);
    // Where another process is lost, that is to be told.
    if (save.path.ok() || engine::IsOfAnotherRank(save.path.status())) return;
    PrintNotice(absl::StrCat("the run goes on, but was not saved after step ", save.step, ": ",
                             save.path.status().message()));
  };
  const absl::Time begin = absl::Now();
  Outcome outcome;
  absl::StatusOr<engine::FitResult> fit =
      Fit(*trainer_, run_->data,
          {.epochs = options.epochs,
           .seed = options.seed,
           .start = position_,
           .start_is_saved = !goes_on,
           .checkpoints = std::move(checkpoints),
           .stop = [&] { return stop.Passes(); },
           .on_step = [&](const engine::FitProgress& progress) { report_->Step(progress); },
           .on_epoch = [&](const engine::EpochResult& result) { report_->Epoch(result); },
           .position = &position_});
  // Before the trainer goes, which takes leave of ranks that may still wait for this one.
  if (!fit.ok() && rendezvous_ != nullptr) rendezvous_->Fail(fit.status(), DeadlineOf(options));
  ASSIGN_OR_RETURN(outcome.fit, std::move(fit));
  outcome.elapsed = absl::Now() - begin;
  ASSIGN_OR_RETURN(outcome.devices, trainer_->Devices());
  ASSIGN_OR_RETURN(outcome.parameters_hash, trainer_->ParametersHash());
  report_->End(*run_, outcome);
  RETURN_IF_ERROR(From(Origin::kConfiguration, WriteTraces(options, *trainer_)));
  RETURN_IF_ERROR(From(Origin::kOutput, outcome.fit.last_save));
  return outcome.fit.stopped ? kExitInterrupted : kExitOk;
}

}  // namespace stagecoach::tools
