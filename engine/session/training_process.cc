#include "engine/session/training_process.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/error_class.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/comm/vote.h"
#include "engine/models/hugging_face_model.h"
#include "engine/session/initial_run.h"
#include "engine/session/saved_run.h"
#include "engine/session/training.h"
#include "engine/train/class_metrics.h"
#include "schedule/simulate/simulate.h"
#include "schedule/traces/chrome_trace.h"

namespace stagecoach::engine {
namespace {

// What would otherwise surface late, or as the kernel's killing the process.
absl::Status CheckRun(const RunConfig& options, const TrainingRun& run) {
  if (!options.checkpoints.empty()) {
    RETURN_IF_ERROR(base::Annotate(base::MakeFolders(options.checkpoints), "--checkpoint"));
    RETURN_IF_ERROR(base::CheckWritable(absl::StrCat(options.checkpoints, "/step")));
  }
  for (const std::string& path : {options.trace, options.simulated_trace}) {
    if (!path.empty()) RETURN_IF_ERROR(base::CheckWritable(path));
  }
  return CheckHasMemoryFor(
      run.prepared, {.saves = !options.checkpoints.empty(),
                     .keeps = run.prepared.compiled.lowered->collectives.results_before_steps});
}

base::Deadline DeadlineOf(const RunConfig& options) {
  return base::Deadline::After(LongestWait(options));
}

// Simulates a step at the times that were measured.
absl::StatusOr<schedule::Trace> SimulateStep(Trainer& trainer) {
  ASSIGN_OR_RETURN(const schedule::Costs costs, trainer.MeasuredCosts());
  const partition::LoweredSchedules& lowered = *trainer.run().compiled.lowered;
  ASSIGN_OR_RETURN(schedule::Simulation simulation,
                   schedule::Simulate(lowered.training, costs,
                                      {.sends = SendsOf(lowered.transfers), .keep_trace = true}));
  return std::move(simulation.trace);
}

absl::Status WriteTraces(const RunConfig& options, Trainer& trainer) {
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

// For a message.
std::string DescribeTokens(const DataEncoding& encoding) {
  if (encoding.tokens_are_bytes) return "bytes of text";
  return absl::StrCat("tokens of ", encoding.tokenizer.empty()
                                        ? "a tokenizer that is not known"
                                        : absl::StrCat("the tokenizer ", encoding.tokenizer));
}

using Compare = decltype(TrainingHooks::compare);

// Compares the data alone, where the caller does not compare more.
absl::StatusOr<std::string> CompareData(const Manifest& saved, const RunConfig& options,
                                        const TrainingRun& run) {
  std::string other = DescribeOtherData(saved, options, run);
  if (other.empty() || options.data_changed) return other;
  return base::DataError(other, absl::StatusCode::kFailedPrecondition);
}

// Returns where the run resumes: at its beginning, if there is no checkpoint.
absl::StatusOr<DataPosition> Resume(const RunConfig& options, const TrainingRun& run,
                                    const Compare& compare, Trainer& trainer,
                                    TrainingObserver& observer) {
  ASSIGN_OR_RETURN(const RestoredCheckpoint restored, trainer.Restore(options.checkpoints));
  for (const absl::Status& status : restored.passed_over) {
    options.notices.Tell(absl::StrCat("passes over a checkpoint: ", status.message()));
  }
  const DataEncoding& was = restored.manifest.encoding;
  const DataEncoding& is = run.data.encoding;
  const bool is_other = !was.tokenizer.empty() && was.tokenizer != is.tokenizer;
  if (was.vocabulary != 0 && (is_other || was.tokens_are_bytes != is.tokens_are_bytes)) {
    return base::DataError(absl::StrCat("the checkpoint was trained on ", DescribeTokens(was),
                                        ", and ", DataOf(options), " is ", DescribeTokens(is)),
                           absl::StatusCode::kFailedPrecondition);
  }
  ASSIGN_OR_RETURN(const std::string changes, compare(restored.manifest, options, run));
  if (!changes.empty()) {
    options.notices.Tell(
        absl::StrCat("the results will not be those of the run that was saved: ", changes));
  }
  observer.Resumed(restored);
  return restored.manifest.position;
}

// Returns an error if the data do not have the metrics that evaluations are to compute.
absl::Status CheckMetrics(const RunConfig& options, const TrainingRun& run) {
  const std::vector<std::string> metrics = EvaluatedMetrics(options);
  const TargetSpec& target = run.data.train->spec().target;
  const bool has_one_class = target.kind == TargetSpec::Kind::kClasses && target.shape.rank() == 0;
  if (metrics.empty() || has_one_class) return absl::OkStatus();
  return base::UsageError(absl::StrCat(
      metrics.front(), " is for data of which each sample has one class as its label, and ",
      DataOf(options), " has ", Describe(target)));
}

// Says which classes a run does not see before it is tested with them.
void NoteClassesOnlyTested(const TrainTest& data, const Notices& notices) {
  const TargetSpec& target = data.train->spec().target;
  if (target.kind != TargetSpec::Kind::kClasses || target.shape.rank() > 0) return;
  const auto classes_of = [&](const Dataset& set) {
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
  notices.Tell(
      absl::StrCat("no row is trained on of the ", names.size() + more == 1 ? "class " : "classes ",
                   absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "",
                   ", which the test set has"));
}

}  // namespace

absl::StatusOr<TrainingProcess::InitialValues> TrainingProcess::OpenInitialValues(
    const RunConfig& options, const TrainingRun& run) {
  InitialValues initial;
  const auto model_of_run = [&] {
    return HuggingFaceModelOf(run.model_text, run.prepared.model.input,
                              run.data.train->spec().target.classes);
  };
  const bool starts_from_run = IsSavedRun(options.initial_parameters);
  if (!options.initial_parameters.empty() && !starts_from_run) {
    ASSIGN_OR_RETURN(const HuggingFaceModel model, model_of_run());
    ASSIGN_OR_RETURN(initial.parameters,
                     HuggingFaceFolder::Open(options.initial_parameters, model));
  }
  if (starts_from_run) {
    ASSIGN_OR_RETURN(initial.checkpoint, CheckpointValues::Open(options.initial_parameters));
  }
  if (IsPeftFolder(options.lora)) {
    ASSIGN_OR_RETURN(const HuggingFaceModel model, model_of_run());
    const auto* const transformer = std::get_if<Transformer>(&model);
    if (transformer == nullptr) {
      return base::UsageError("--lora: a folder of PEFT's is for transformers");
    }
    ASSIGN_OR_RETURN(initial.adapters, PeftFolder::Open(options.lora, *transformer));
  }
  return initial;
}

absl::StatusOr<TrainingOutcome> TrainingProcess::Train(RunConfig options,
                                                       const ProcessGroup& group) {
  RETURN_IF_ERROR(run_.has_value() ? TakeOwnFolder(options, group) : Begin(options, group));
  const bool goes_on = trainer_ != nullptr || snapshot_.has_value() || group.launch.is_replacement;
  if (goes_on) RETURN_IF_ERROR(PrepareRecovery(options, *group.rendezvous));
  rendezvous_ = group.rendezvous;
  InitialValues initial;
  const bool begins = !goes_on && !resumes_;
  if (begins) {
    ASSIGN_OR_RETURN(initial, OpenInitialValues(options, *run_));
  }
  ParameterStart start = {.is_drawn = begins && !initial.parameters.has_value() &&
                                      !initial.checkpoint.has_value()};
  // Hosts may have different folders of the same name.
  if (rendezvous_ != nullptr && initial.parameters.has_value()) {
    ASSIGN_OR_RETURN(start.fingerprint, initial.parameters->Fingerprint());
  }
  if (rendezvous_ != nullptr && initial.checkpoint.has_value()) {
    start.fingerprint +=
        absl::StrCat("initial checkpoint: ",
                     base::HashOf(ToJson(initial.checkpoint->checkpoint().manifest().files)), "\n");
  }
  if (rendezvous_ != nullptr && initial.adapters.has_value()) {
    ASSIGN_OR_RETURN(const std::string of_adapters, initial.adapters->Fingerprint());
    start.fingerprint += of_adapters;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer, MakeTrainer(options, *run_, group, start));
  ASSIGN_OR_RETURN(position_, FindStart(options, goes_on, initial, *trainer));
  trainer_ = std::move(trainer);
  snapshot_.reset();
  RETURN_IF_ERROR(observer_->Ready(
      options, *run_, {.step = trainer_->steps(), .is_evaluated = position_.metrics.has_value()}));
  if (supervisor_ != nullptr && trainer_->can_lose_processes()) {
    supervisor_->CanGoOn().IgnoreError();  // it may have ended the run already
  }
  return TrainToTheEnd(options, group.launch.restarts, goes_on);
}

absl::Status TrainingProcess::TakeOwnFolder(RunConfig& options, const ProcessGroup& group) {
  if (options.runs.empty() || !options.checkpoints.empty()) return absl::OkStatus();
  if (options.is_first_rank() && own_folder_.empty() && !group.launch.is_replacement) {
    const absl::Status has_memory = CheckHasMemoryFor(
        run_->prepared,
        {.saves = true,
         .keeps = run_->prepared.compiled.lowered->collectives.results_before_steps});
    absl::StatusOr<std::string> made =
        has_memory.ok() ? MakeRunFolder(options, SavedBytesOf(run_->prepared), absl::Now())
                        : has_memory;
    if (made.ok()) {
      own_folder_ = *std::move(made);
    } else {
      options.notices.Tell(absl::StrCat("the run will not be saved: ", made.status().message()));
    }
  }
  if (group.rendezvous != nullptr) {
    ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                     group.rendezvous->AllGather(own_folder_, DeadlineOf(options)));
    const auto known = absl::c_find_if(folders, [](const auto& name) { return !name.empty(); });
    if (known != folders.end()) own_folder_ = *known;
  }
  options.checkpoints = own_folder_;
  options.saves_at_end_only = true;
  return absl::OkStatus();
}

absl::Status TrainingProcess::Begin(RunConfig& options, const ProcessGroup& group) {
  ASSIGN_OR_RETURN(run_, MakeRun(options));
  RETURN_IF_ERROR(CheckRun(options, *run_));
  if (!resumes_ && IsSavedRun(options.initial_parameters)) {
    RETURN_IF_ERROR(CheckStartsFrom(options, *run_));
  }
  if (group.rendezvous != nullptr && !options.plan_file.empty()) {
    RETURN_IF_ERROR(CheckProcesses(group.launch, run_->prepared.plan().num_devices(),
                                   absl::StrCat("--plan ", options.plan_file)));
  }
  RETURN_IF_ERROR(TakeOwnFolder(options, group));
  if (!lock_.has_value() && options.is_first_rank()) {  // the folder has been made just now
    ASSIGN_OR_RETURN(lock_, LockCheckpoints(options.checkpoints, options.notices));
  }
  RETURN_IF_ERROR(CheckMetrics(options, *run_));
  NoteClassesOnlyTested(run_->data, options.notices);
  if (options.sampled_answers > 0) {
    ASSIGN_OR_RETURN(sampler_, AnswerSampler::Create(options, *run_));
  }
  return observer_->Start(options, *run_);
}

absl::Status TrainingProcess::PrepareRecovery(const RunConfig& options, Rendezvous& rendezvous) {
  std::optional<StepProgress> own;
  if (snapshot_.has_value()) own = {.steps = snapshot_->steps};
  if (trainer_ != nullptr) {
    own = {.steps = trainer_->steps(), .may_complete = trainer_->may_complete_step()};
  }
  ASSIGN_OR_RETURN(const int64_t steps, AgreeOnStep(rendezvous, own, LongestWait(options)));
  if (trainer_ == nullptr) return absl::OkStatus();
  const bool completes = trainer_->steps() < steps;
  if (completes) RETURN_IF_ERROR(trainer_->CompleteStep());
  ASSIGN_OR_RETURN(snapshot_, trainer_->TakeSnapshot());
  if (!completes) snapshot_->position = position_;
  trainer_.reset();
  return absl::OkStatus();
}

absl::StatusOr<DataPosition> TrainingProcess::FindStart(const RunConfig& options, bool goes_on,
                                                        const InitialValues& initial,
                                                        Trainer& trainer) {
  if (goes_on) {
    ASSIGN_OR_RETURN(DataPosition position,
                     trainer.RestoreSnapshot(snapshot_.has_value() ? &*snapshot_ : nullptr));
    observer_->OnRecovered(trainer.steps(), position.epoch);
    return position;
  }
  const std::pair<const char*, bool> unread[] = {{"--init", !options.initial_parameters.empty()},
                                                 {"--lora", IsPeftFolder(options.lora)}};
  for (const auto& [flag, is_given] : unread) {
    if (!resumes_ || !is_given) continue;
    options.notices.Tell(absl::StrCat(flag, " is not read: the run resumes from its checkpoint"));
  }
  if (!resumes_) {
    if (const auto& folder = initial.parameters; folder.has_value()) {
      if (!folder->dropout().empty() && options.is_first_rank()) {
        options.notices.Tell(absl::StrCat("the model is trained without the dropout of ",
                                          options.initial_parameters,
                                          "/config.json: ", folder->dropout()));
      }
      RETURN_IF_ERROR(trainer.SetParameters(std::bind_front(&HuggingFaceFolder::Read, *folder)));
    }
    if (initial.checkpoint.has_value()) {
      if (options.is_first_rank()) {
        options.notices.Tell(absl::StrCat("starts with the parameters of ",
                                          options.initial_parameters,
                                          options.draws_head ? ", but for a new head" : ""));
      }
      const auto read = InitialValuesOf(options, *run_, *initial.checkpoint);
      RETURN_IF_ERROR(trainer.SetParameters(read));
      if (initial.checkpoint->HasAdapters(run_->prepared.profile.parameters)) {
        RETURN_IF_ERROR(trainer.SetAdapters(read));
      }
    }
    if (initial.adapters.has_value()) {
      RETURN_IF_ERROR(trainer.SetAdapters(std::bind_front(&PeftFolder::Read, *initial.adapters)));
    }
    return DataPosition();
  }
  return Resume(options, *run_, hooks_.compare == nullptr ? CompareData : hooks_.compare, trainer,
                *observer_);
}

void TrainingProcess::SampleAnswers(const RunConfig& options, const EpochResult& result) {
  if (sampler_ == nullptr) return;
  const absl::StatusOr<std::vector<SampledAnswer>> answers = sampler_->Answer(*trainer_);
  if (answers.ok()) {
    observer_->Answers(result, *answers);
  } else if (!IsOfAnotherRank(answers.status())) {
    options.notices.Tell(absl::StrCat("no answers are sampled after step ", result.step, ": ",
                                      answers.status().message()));
  }
}

absl::StatusOr<TrainingOutcome> TrainingProcess::TrainToTheEnd(const RunConfig& options,
                                                               int restarts, bool goes_on) {
  Vote stop(rendezvous_.get(),
            {.wanted = [&] { return options.wants_stop == nullptr ? 0 : options.wants_stop(); },
             .deadline = LongestWait(options)});
  AutomaticSaves automatic(rendezvous_.get(), LongestWait(options), restarts,
                           options.every_steps.has_value() || options.saves_at_end_only,
                           options.wants_save);
  CheckpointOptions checkpoints = CheckpointOptionsOf(options, *run_,
                                                      hooks_.options_to_save == nullptr
                                                          ? OptionsOfConfig(options, *run_)
                                                          : hooks_.options_to_save(options, *run_),
                                                      automatic);
  checkpoints.on_save = [&](const SaveReport& save) {
    automatic.Saved(save);
    observer_->Saved(save);
    // If another process is lost, that is the error to report.
    if (save.path.ok() || IsOfAnotherRank(save.path.status())) return;
    options.notices.Tell(absl::StrCat("the run continues, but was not saved after step ", save.step,
                                      ": ", save.path.status().message()));
  };
  if (sampler_ != nullptr) sampler_->ForgetFrozen();
  absl::Status traced;
  const absl::Time begin = absl::Now();
  TrainingOutcome outcome = {.stop_when = options.stop_when};
  absl::StatusOr<FitResult> fit =
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
               [&](const Metrics& metrics) {
                 return options.stop_when.has_value() && options.stop_when->IsMet(metrics);
               },
           .metrics = EvaluatedMetrics(options),
           .own_metrics = options.own_metrics,
           .best_by = options.best_by,
           .patience = options.patience,
           .on_step =
               [&](const FitProgress& progress) {
                 observer_->Step(progress);
                 if (options.traced_step == progress.run_step) {
                   traced = WriteTraces(options, *trainer_);
                 }
                 const bool is_asked = options.wants_save != nullptr &&
                                       options.checkpoints.empty() && options.wants_save();
                 if (!is_asked) return;
                 options.notices.Tell(
                     "asked for a checkpoint, but the run has no folder for it: see --checkpoint");
               },
           .on_epoch =
               [&](const EpochResult& result) {
                 observer_->Epoch(result);
                 SampleAnswers(options, result);
               },
           .on_evaluation =
               [&](const EpochResult& result) {
                 observer_->Evaluation(result);
                 SampleAnswers(options, result);
               },
           .position = &position_});
  // This must precede the trainer's end, which takes leave of ranks that may still wait for this
  // one.
  if (!fit.ok() && rendezvous_ != nullptr) rendezvous_->Fail(fit.status(), DeadlineOf(options));
  if (absl::IsOutOfRange(fit.status())) {  // NaN or infinity
    const char* const advice =
        options.on_nonfinite.has_value()
            ? "; try a lower --learning-rate"
            : "; try a lower --learning-rate, or --on-nonfinite stop or skip";
    fit = base::WithClass(
        base::ErrorClass::kData,
        base::WithMessage(fit.status(), absl::StrCat(fit.status().message(), advice)));
  }
  ASSIGN_OR_RETURN(outcome.fit, std::move(fit));
  outcome.elapsed = absl::Now() - begin;
  outcome.stop_reason = stop.reason();
  ASSIGN_OR_RETURN(outcome.devices, trainer_->Devices());
  ASSIGN_OR_RETURN(outcome.parameters_hash, trainer_->ParametersHash());
  observer_->End(*run_, outcome);
  if (!options.traced_step.has_value()) traced = WriteTraces(options, *trainer_);
  if (options.traced_step.value_or(0) > trainer_->steps()) {
    options.notices.Tell(absl::StrCat("no trace was written: the run ended after step ",
                                      trainer_->steps(), ", before step ", *options.traced_step));
  }
  RETURN_IF_ERROR(traced);
  RETURN_IF_ERROR(outcome.fit.last_save);
  return outcome;
}

}  // namespace stagecoach::engine
