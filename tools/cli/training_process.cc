#include "tools/cli/training_process.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/launch/vote.h"
#include "schedule/simulate.h"
#include "schedule/traces/chrome_trace.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/messages.h"
#include "tools/cli/metrics_file.h"
#include "tools/cli/saved_run.h"
#include "tools/cli/stop_signal.h"
#include "tools/cli/tensorboard_log.h"
#include "tools/cli/training.h"

namespace stagecoach::tools {
namespace {

bool IsFirstRank(const RunOptions& options) { return options.rank.value_or(0) == 0; }

// What would otherwise surface late, or as the kernel's killing the process.
absl::Status CheckRun(const RunOptions& options, const Run& run) {
  if (!options.checkpoints.empty()) {
    RETURN_IF_ERROR(From(Origin::kOutput,
                         base::Annotate(base::MakeFolders(options.checkpoints), "--checkpoint")));
    RETURN_IF_ERROR(
        From(Origin::kOutput, base::CheckWritable(absl::StrCat(options.checkpoints, "/step"))));
  }
  for (const std::string& path : {options.trace, options.simulated_trace}) {
    if (!path.empty()) RETURN_IF_ERROR(From(Origin::kOutput, base::CheckWritable(path)));
  }
  if (IsFirstRank(options) && !options.metrics.empty()) {
    RETURN_IF_ERROR(From(Origin::kOutput, base::CheckWritable(options.metrics)));
  }
  return CheckHasMemoryFor(run.prepared,
                           {.saves = !options.checkpoints.empty(),
                            .keeps = run.prepared.lowered->collectives.results_before_steps});
}

base::Deadline DeadlineOf(const RunOptions& options) {
  return base::Deadline::After(LongestWait(options));
}

// Simulates a step at the times that were measured.
absl::StatusOr<schedule::Trace> SimulateStep(engine::Trainer& trainer) {
  ASSIGN_OR_RETURN(const schedule::Costs costs, trainer.MeasuredCosts());
  const partition::LoweredPlan& lowered = *trainer.run().lowered;
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
  void Evaluation(const engine::EpochResult& /*result*/) override {}
  void Resumed(const engine::RestoredCheckpoint& /*checkpoint*/) override {}
  void WentOn(int64_t /*steps*/, int /*epoch*/) override {}
  void Saved(const engine::SaveReport& /*save*/) override {}
  void End(const Run& /*run*/, const Outcome& /*outcome*/) override {}
};

std::unique_ptr<Report> ReportFor(const RunOptions& options, const Run& run) {
  if (!IsFirstRank(options)) return std::make_unique<SilentReport>();
  const ReportOptions report = {.explains = options.explain,
                                .log_every_steps = options.log_every_steps};
  return options.json ? MakeJsonReport(report) : MakeTextReport(EpochsOf(options, run), report);
}

// For a message.
std::string DescribeTokens(const engine::DataEncoding& encoding) {
  if (encoding.tokens_are_bytes) return "bytes of text";
  return absl::StrCat("tokens of ", encoding.tokenizer.empty()
                                        ? "a tokenizer that is not known"
                                        : absl::StrCat("the tokenizer ", encoding.tokenizer));
}

// What --init names.
absl::StatusOr<engine::HuggingFaceFolder> OpenInitialParameters(const RunOptions& options,
                                                                const Run& run) {
  ASSIGN_OR_RETURN(const engine::HuggingFaceModel model,
                   engine::HuggingFaceModelOf(run.model_text, run.prepared.model.input,
                                              run.data.train->spec().target.classes));
  return engine::HuggingFaceFolder::Open(options.initial_parameters, model);
}

// Where the run goes on: at its beginning, if there is no checkpoint.
absl::StatusOr<engine::DataPosition> Resume(const RunOptions& options, const Run& run,
                                            engine::Trainer& trainer, Report& report) {
  ASSIGN_OR_RETURN(const engine::RestoredCheckpoint restored, trainer.Restore(options.checkpoints));
  for (const absl::Status& status : restored.passed_over) {
    PrintNotice(absl::StrCat("passes over a checkpoint: ", status.message()));
  }
  const engine::DataEncoding& was = restored.manifest.encoding;
  const engine::DataEncoding& is = run.data.encoding;
  const bool is_other = !was.tokenizer.empty() && was.tokenizer != is.tokenizer;
  if (was.vocabulary != 0 && (is_other || was.tokens_are_bytes != is.tokens_are_bytes)) {
    return From(Origin::kData, absl::FailedPreconditionError(absl::StrCat(
                                   "the checkpoint was trained on ", DescribeTokens(was), ", and ",
                                   DataOf(options), " is ", DescribeTokens(is))));
  }
  const absl::Status same = CheckData(restored.manifest, options, run);
  RETURN_IF_ERROR(base::WithMessage(
      same, absl::StrCat(same.message(), "; --data-changed goes on with what it is now")));
  std::string changes = DescribeChanges(restored.manifest, options, run);
  if (options.data_changed) {
    const std::string other = DescribeOtherData(restored.manifest, options, run);
    absl::StrAppend(&changes, changes.empty() || other.empty() ? "" : "; ", other);
  }
  if (!changes.empty()) {
    PrintNotice(absl::StrCat("the results will not be those of the run that was saved: ", changes));
  }
  report.Resumed(restored);
  return restored.manifest.position;
}

// Says which classes a run does not see before it is tested with them.
void NoteClassesOnlyTested(const engine::TrainTest& data) {
  const engine::TargetSpec& target = data.train->spec().target;
  if (target.kind != engine::TargetSpec::Kind::kClasses || target.shape.rank() > 0) return;
  const auto classes_of = [&](const engine::Dataset& set) {
    std::vector<bool> occurs(static_cast<size_t>(target.classes));
    for (int64_t row = 0; row < set.rows(); ++row) {
      occurs[static_cast<size_t>(set.label(row))] = true;
    }
    return occurs;
  };
  const std::vector<bool> trained = classes_of(*data.train), tested = classes_of(*data.test);
  constexpr size_t kMostNamed = 5;
  std::vector<std::string> names;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (!tested[i] || trained[i]) continue;
    names.push_back(absl::StrCat("\"", data.encoding.NameOf(static_cast<int32_t>(i)), "\""));
  }
  if (names.empty()) return;
  const size_t more = names.size() - std::min(names.size(), kMostNamed);
  names.resize(names.size() - more);
  PrintNotice(
      absl::StrCat("no row is trained on of the ", names.size() + more == 1 ? "class " : "classes ",
                   absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "",
                   ", which the test set has"));
}

}  // namespace

absl::StatusOr<int> TrainingProcess::Train(const RunOptions& options, const Meeting& meeting) {
  if (!run_.has_value()) RETURN_IF_ERROR(Begin(options, meeting));
  const bool goes_on = trainer_ != nullptr || kept_.has_value() || meeting.launch.is_replacement;
  if (goes_on) RETURN_IF_ERROR(LetGo(options, *meeting.rendezvous));
  rendezvous_ = meeting.rendezvous;
  std::optional<engine::HuggingFaceFolder> initial;
  ParameterStart start = {.is_drawn = !goes_on && !resumes_};
  if (!goes_on && !resumes_ && !options.initial_parameters.empty()) {
    ASSIGN_OR_RETURN(initial, From(Origin::kData, OpenInitialParameters(options, *run_)));
    start.is_drawn = false;
    // Hosts may have different folders of that name.
    if (rendezvous_ != nullptr) {
      ASSIGN_OR_RETURN(start.fingerprint, From(Origin::kData, initial->Fingerprint()));
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<engine::Trainer> trainer,
                   From(Origin::kConfiguration, MakeTrainer(options, *run_, meeting, start)));
  ASSIGN_OR_RETURN(position_, FindStart(options, goes_on, initial, *trainer));
  trainer_ = std::move(trainer);
  kept_.reset();
  RETURN_IF_ERROR(OpenLogs(options));
  if (supervisor_ != nullptr && trainer_->can_lose_processes()) {
    supervisor_->CanGoOn().IgnoreError();  // it may have ended the run already
  }
  return TrainToTheEnd(options, meeting.launch.restarts, goes_on);
}

absl::Status TrainingProcess::Begin(const RunOptions& options, const Meeting& meeting) {
  ASSIGN_OR_RETURN(run_, MakeRun(options));
  RETURN_IF_ERROR(From(Origin::kConfiguration, CheckRun(options, *run_)));
  if (meeting.rendezvous != nullptr && !options.plan_file.empty()) {
    RETURN_IF_ERROR(CheckProcesses(meeting.launch, run_->prepared.plan.num_devices(),
                                   absl::StrCat("--plan ", options.plan_file)));
  }
  if (!lock_.has_value() && IsFirstRank(options)) {  // the folder has been made just now
    ASSIGN_OR_RETURN(lock_, LockCheckpoints(options.checkpoints));
  }
  report_ = ReportFor(options, *run_);
  StopOnSignals();
  StopOnHangUps();
  NoteClassesOnlyTested(run_->data);
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

absl::StatusOr<engine::DataPosition> TrainingProcess::FindStart(
    const RunOptions& options, bool goes_on,
    const std::optional<engine::HuggingFaceFolder>& initial, engine::Trainer& trainer) {
  if (goes_on) {
    ASSIGN_OR_RETURN(engine::DataPosition position,
                     trainer.Adopt(kept_.has_value() ? &*kept_ : nullptr));
    report_->WentOn(trainer.steps(), position.epoch);
    return position;
  }
  if (resumes_ && !options.initial_parameters.empty()) {
    PrintNotice("--init is not read: the run goes on from its checkpoint");
  }
  if (!resumes_) {
    if (!initial.has_value()) return engine::DataPosition();
    if (!initial->dropout().empty() && IsFirstRank(options)) {
      PrintNotice(absl::StrCat("the model is trained without the dropout of ",
                               options.initial_parameters, "/config.json: ", initial->dropout()));
    }
    RETURN_IF_ERROR(From(Origin::kData, trainer.SetParameters(std::bind_front(
                                            &engine::HuggingFaceFolder::Read, *initial))));
    return engine::DataPosition();
  }
  return From(Origin::kData, Resume(options, *run_, trainer, *report_));
}

absl::Status TrainingProcess::OpenLogs(const RunOptions& options) {
  if (!IsFirstRank(options) || !logs_.empty()) return absl::OkStatus();
  const RunLog::Options log = {
      .every_steps = std::max<int64_t>(1, options.log_every_steps),
      .measures =
          Measures::Of(*run_->data.train, run_->prepared.profile.loss_spec, run_->data.encoding)};
  std::optional<RunLog::Start> start;
  if (trainer_->steps() > 0) {
    start = {.step = trainer_->steps(), .is_evaluated = position_.figures.has_value()};
  }
  if (!options.metrics.empty()) {
    ASSIGN_OR_RETURN(logs_.emplace_back(),
                     From(Origin::kData, MetricsFile::Open(options.metrics, log, start)));
  }
  if (!options.tensorboard.empty()) {
    ASSIGN_OR_RETURN(logs_.emplace_back(),
                     From(Origin::kOutput, TensorBoardLog::Open(options.tensorboard, log, start)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> TrainingProcess::TrainToTheEnd(const RunOptions& options, int restarts,
                                                   bool goes_on) {
  engine::Vote stop(rendezvous_.get(), {.wanted = StopSignal, .deadline = LongestWait(options)});
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
  Outcome outcome = {.stop_when = options.stop_when};
  absl::StatusOr<engine::FitResult> fit =
      Fit(*trainer_, run_->data,
          {.epochs = options.epochs,
           .steps = options.steps,
           .evaluate_every_steps = options.evaluate_every_steps,
           .seed = options.seed,
           .start = position_,
           .start_is_saved = !goes_on,
           .checkpoints = std::move(checkpoints),
           .stop = [&] { return stop.Passes(); },
           .stop_when =
               [&](const engine::Figures& figures) {
                 return options.stop_when.has_value() && options.stop_when->IsMet(figures);
               },
           .on_step =
               [&](const engine::FitProgress& progress) {
                 report_->Step(progress);
                 for (const auto& log : logs_) log->Step(progress);
               },
           .on_epoch =
               [&](const engine::EpochResult& result) {
                 report_->Epoch(result);
                 for (const auto& log : logs_) log->Epoch(result);
               },
           .on_evaluation =
               [&](const engine::EpochResult& result) {
                 report_->Evaluation(result);
                 for (const auto& log : logs_) log->Evaluation(result);
               },
           .position = &position_});
  // Before the trainer goes, which takes leave of ranks that may still wait for this one.
  if (!fit.ok() && rendezvous_ != nullptr) rendezvous_->Fail(fit.status(), DeadlineOf(options));
  if (absl::IsOutOfRange(fit.status())) {  // numbers that are not finite
    const char* const advice =
        options.on_nonfinite.has_value()
            ? "; try a lower --learning-rate"
            : "; try a lower --learning-rate, or --on-nonfinite stop or skip";
    fit = From(Origin::kData,
               base::WithMessage(fit.status(), absl::StrCat(fit.status().message(), advice)));
  }
  ASSIGN_OR_RETURN(outcome.fit, std::move(fit));
  outcome.elapsed = absl::Now() - begin;
  ASSIGN_OR_RETURN(outcome.devices, trainer_->Devices());
  ASSIGN_OR_RETURN(outcome.parameters_hash, trainer_->ParametersHash());
  report_->End(*run_, outcome);
  RETURN_IF_ERROR(From(Origin::kOutput, WriteTraces(options, *trainer_)));
  RETURN_IF_ERROR(From(Origin::kOutput, outcome.fit.last_save));
  for (const auto& log : logs_) {
    if (!log->status().ok()) return kExitCannotWrite;  // which it has told
  }
  return outcome.fit.stopped ? StatusOfStop(stop.reason()) : kExitOk;
}

}  // namespace stagecoach::tools
