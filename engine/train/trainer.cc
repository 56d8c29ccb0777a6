#include "engine/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/system_calls.h"
#include "engine/device/choices.h"
#include "engine/run/executor.h"
#include "engine/run/rank_group.h"
#include "engine/train/fingerprint.h"
#include "engine/train/gathered_outputs.h"
#include "engine/train/measured_costs.h"
#include "engine/train/pace_watch.h"
#include "engine/train/saved_state.h"
#include "engine/train/step_traces.h"
#include "engine/train/trained_parameters.h"
#include "engine/train/trainer_checks.h"

namespace stagecoach::engine {
namespace {

class PipelineTrainer final : public Trainer {
 public:
  PipelineTrainer(PreparedRun run, const TrainerOptions& options)
      : run_(std::move(run)), options_(options) {}

  // An executor owns memory of its device, which transfers may still use.
  ~PipelineTrainer() override {
    if (group_ != nullptr) group_->Disconnect();
  }

  absl::Status Initialize();

  absl::StatusOr<StepResult> Step(const Dataset& data, absl::Span<const int64_t> rows,
                                  absl::Span<const int64_t> next_rows) override;
  absl::StatusOr<Evaluation> Evaluate(const Dataset& data, const StopFunction& stop) override;
  absl::StatusOr<Evaluation> Predict(const Dataset& data, const TakeOutputs& take) override;
  absl::Status BeginSave(const std::string& folder, const SaveOptions& options) override;
  absl::StatusOr<std::string> FinishSave() override;
  bool is_saving() const override { return saved_state_->is_under_way(); }
  absl::StatusOr<RestoredCheckpoint> Restore(const std::string& path) override;
  const PreparedRun& run() const override { return run_; }
  int64_t steps() const override { return steps_; }
  absl::StatusOr<std::vector<DeviceReport>> Devices() override;
  absl::StatusOr<schedule::Trace> LastTrace() override;
  absl::StatusOr<schedule::Costs> MeasuredCosts() override;
  absl::StatusOr<std::string> ParametersHash() override;
  absl::StatusOr<std::vector<float>> Parameter(const std::string& name) override;
  absl::Status SetParameter(const std::string& name, absl::Span<const float> values) override;

 private:
  absl::Status CreateExecutor(int device);
  // A run of the schedule by all devices; `function(device, is_measured)`.
  absl::Status RunSchedule(absl::FunctionRef<absl::Status(int, bool)> function);
  absl::Status CreateRings();
  // Where all ranks are here, and one has waited for too long, an error with what has held it up.
  absl::Status Explained(const absl::Status& status) const;
  // Among processes: products are computed in one way wherever they are.
  absl::Status CheckChoices();
  // The batch as the replica of a device takes it.
  Batch OwnBatch(const Batch& batch, int device) const;
  // What the plan says of a device, and what was measured, of one that is here.
  DeviceReport ReportPlanned(int device) const;
  void AddMeasurements(int index, DeviceReport& report) const;
  absl::Status CheckTraced();
  absl::Status CheckData(const Dataset& data) const;
  absl::Status CheckMayTrain() const;
  // Which results of a forward pass are wanted.
  struct Wanted {
    bool loss = false;
    bool outputs = false;
  };
  // A forward pass of the batch of `data` that follows the rows evaluated so far, which adds to
  // them.
  absl::Status RunForward(const Dataset& data, Wanted wanted, Evaluation& sums);
  absl::StatusOr<Evaluation> PredictAll(const Dataset& data, const TakeOutputs& take);
  // One that knows the results of a run of the replica.
  const Executor& ExecutorOf(int replica) const;
  // Adds those of the last run, by rows, so that a sum over runs is the same however many rows each
  // has.
  void AddResults(double& loss, int64_t& correct) const;

  const PreparedRun run_;
  const TrainerOptions options_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<Rings> rings_;
  std::vector<std::unique_ptr<Executor>> executors_;  // index: device; null where it is elsewhere
  std::vector<int64_t> evaluation_rows_;
  std::unique_ptr<PaceWatch> pace_watch_;  // null if there is none to be told
  std::unique_ptr<StepTraces> traces_;     // null without tracing
  std::unique_ptr<SavedState> saved_state_;
  int64_t steps_ = 0;
  int64_t samples_ = 0;           // rows of these steps
  int64_t restored_steps_ = 0;    // of those, the ones before a checkpoint
  int64_t runs_ = 0;              // of either schedule
  int64_t measured_ns_ = 0;       // of those that were measured
  int64_t last_measured_ns_ = 0;  // of the last one; 0 if it was not
};

absl::Status PipelineTrainer::Initialize() {
  RETURN_IF_ERROR(CheckTrainer(run_.plan, options_));
  RETURN_IF_ERROR(CheckPreparedFor(run_, options_));

  RankGroupOptions group = GroupOptionsOf(run_.plan, options_);
  group.fingerprint = FingerprintOf(run_, options_);
  ASSIGN_OR_RETURN(group_, RankGroup::Connect(group, run_.lowered.training));
  RETURN_IF_ERROR(CreateRings());
  executors_.resize(static_cast<size_t>(plan().num_devices()));
  // No rank begins before all are ready: a rank that waits for another keeps its GPU busy.
  RETURN_IF_ERROR(
      group_->Agree(group_->Together([&](int device) { return CreateExecutor(device); })));
  if (options_.rendezvous != nullptr) {
    RETURN_IF_ERROR(group_->DescribeBy([this] { return ExecutorOf(0).Activity(); }));
  }
  RETURN_IF_ERROR(CheckChoices());
  evaluation_rows_.reserve(static_cast<size_t>(plan().batch_rows()));
  saved_state_ =
      std::make_unique<SavedState>(run_, *group_, executors_, base::SystemCalls::Kernel());
  if (options_.on_slow_rank) {
    pace_watch_ = std::make_unique<PaceWatch>(*group_, options_.on_slow_rank);
  }
  if (options_.trace) traces_ = std::make_unique<StepTraces>(run_.lowered.training);
  return absl::OkStatus();
}

absl::Status PipelineTrainer::CreateRings() {
  std::vector<RingOwner> owners;
  for (const int device : group_->local_devices()) {
    owners.push_back({.device = device,
                      .devices = plan().num_devices(),
                      .replica = group_->mesh().replica_of(device),
                      .replicas = plan().replicas(),
                      .name = group_->names()[static_cast<size_t>(device)]});
  }
  ASSIGN_OR_RETURN(rings_, Rings::Create(options_.rings, owners));
  return absl::OkStatus();
}

absl::Status PipelineTrainer::Explained(const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status) || options_.rendezvous != nullptr) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", rings_->Explain()));
}

absl::Status PipelineTrainer::CheckChoices() {
  if (options_.rendezvous == nullptr) return absl::OkStatus();
  const kernels::Device& device = group_->device(options_.rendezvous->rank());
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   group_->Gather(absl::StrJoin(device.choices(), "\n")));
  std::vector<std::vector<std::string>> choices;
  for (const std::string& text : texts) {
    choices.push_back(absl::StrSplit(text, '\n', absl::SkipEmpty()));
  }
  return CheckSameChoices(choices);
}

absl::Status PipelineTrainer::CreateExecutor(int device) {
  const schedule::Rank rank = group_->mesh().rank_of(device);
  std::vector<std::unique_ptr<Stage>> stages;
  for (StageId id : run_.lowered.training.StagesOf(rank)) {
    const int index = id.value();
    StageOptions options{.id = id,
                         .first_layer = plan().first(index),
                         .last_layer = plan().last(index),
                         .is_first = run_.lowered.training.is_first(id),
                         .is_last = run_.lowered.training.is_last(id),
                         .splits_backward = run_.lowered.training.SplitsBackward(id),
                         .trains = plan().trains(),
                         .input = run_.profile.inputs[static_cast<size_t>(plan().first(index))],
                         .micro_batch_rows = plan().micro_batch_rows,
                         .micro_batches = plan().schedule.num_micro_batches,
                         .replication = plan().replication,
                         .optimizer = options_.optimizer,
                         .updates_in_backward = run_.updates_in_backward()};
    ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage, Stage::Create(group_->device(device), run_.model,
                                                                 run_.profile.parameters, options));
    STAGECOACH_CHECK(stage->memory() == run_.report.of(id).memory,
                     absl::StrCat("stage ", index, " is not laid out as it was predicted"));
    stages.push_back(std::move(stage));
  }
  const partition::RankReport& predicted = run_.report.of(rank);
  ASSIGN_OR_RETURN(
      executors_[static_cast<size_t>(device)],
      Executor::Create(
          {.device = &group_->device(device),
           .number = device,
           .transport = &group_->transport(device),
           .ring = &rings_->of(device),
           .beside = group_->beside(device),
           .replicas = group_->replicas(device),
           .deadline = options_.deadline,
           .seed = options_.seed,
           .parameters = &run_.profile.parameters,
           .output = run_.profile.output,
           .clip_norm = options_.optimizer.clip_norm,
           .collectives = run_.lowered.collectives,
           .training = {plan().trains() ? &run_.lowered.training : nullptr, predicted.training},
           .evaluation = {&run_.lowered.evaluation, predicted.evaluation}},
          std::move(stages)));
  return absl::OkStatus();
}

absl::Status PipelineTrainer::RunSchedule(absl::FunctionRef<absl::Status(int, bool)> function) {
  // On an accelerator a few runs stand for all: early ones, so that there are some, and then one in
  // so many.
  constexpr int64_t kMeasuredOf = 16;
  const bool is_early = (runs_ & (runs_ - 1)) == 0;
  const bool is_measured = options_.device.kind == DeviceKind::kCpu || traces_ != nullptr ||
                           is_early || runs_ % kMeasuredOf == 0;
  ++runs_;
  const auto start = std::chrono::steady_clock::now();
  absl::Status status =
      group_->Together([&](int device) { return Explained(function(device, is_measured)); });
  const auto took = std::chrono::steady_clock::now() - start;
  last_measured_ns_ =
      is_measured ? std::chrono::duration_cast<std::chrono::nanoseconds>(took).count() : 0;
  measured_ns_ += last_measured_ns_;
  return status;
}

absl::Status PipelineTrainer::CheckMayTrain() const {
  if (plan().trains()) return absl::OkStatus();
  return absl::FailedPreconditionError("the plan has no backward pass: it can only predict");
}

absl::Status PipelineTrainer::CheckData(const Dataset& data) const {
  return CheckFits(data.spec(), run_.model.input, run_.profile.loss_spec.target);
}

const Executor& PipelineTrainer::ExecutorOf(int replica) const {
  if (options_.rendezvous != nullptr) {
    return *executors_[static_cast<size_t>(options_.rendezvous->rank())];
  }
  const StageId last(plan().num_stages() - 1);
  const schedule::Rank rank = run_.lowered.training.rank_of(last);
  return *executors_[static_cast<size_t>(group_->mesh().device_of(rank, replica))];
}

void PipelineTrainer::AddResults(double& loss, int64_t& correct) const {
  for (int replica = 0; replica < plan().replicas(); ++replica) {
    const Executor& executor = ExecutorOf(replica);
    for (int i = 0; i < plan().schedule.num_micro_batches; ++i) {
      const LossResult result = executor.Result(replica, MicroBatch(i));
      loss += result.loss;
      correct += result.correct;
    }
  }
}

absl::StatusOr<StepResult> PipelineTrainer::Step(const Dataset& data,
                                                 absl::Span<const int64_t> rows,
                                                 absl::Span<const int64_t> next_rows) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(group_->status());
  RETURN_IF_ERROR(CheckMayTrain());
  RETURN_IF_ERROR(CheckData(data));
  if (static_cast<int64_t>(rows.size()) != plan().batch_rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step takes ", plan().batch_rows(), " rows, not ", rows.size()));
  }
  const bool knows_next = static_cast<int64_t>(next_rows.size()) == plan().batch_rows();
  const int64_t number = steps_ + 1;
  const TrainStep step{
      .update = {.step = number, .learning_rate = options_.learning_rate.At(number)},
      .start = start,
      .next = {.data = knows_next ? &data : nullptr, .rows = next_rows}};
  schedule::Trace* const trace =
      traces_ == nullptr ? nullptr : &traces_->Begin(number - restored_steps_);
  const Batch batch{.data = &data, .rows = rows, .step = number, .first_sample = samples_};
  RETURN_IF_ERROR(RunSchedule([&](int device, bool is_measured) {
    TrainStep own = step;
    own.is_measured = is_measured;
    own.next = OwnBatch(step.next, device);
    const bool is_traced = group_->mesh().replica_of(device) == 0;
    return executors_[static_cast<size_t>(device)]->Train(OwnBatch(batch, device), own,
                                                          is_traced ? trace : nullptr);
  }));
  steps_ = number;
  samples_ += plan().batch_rows();
  if (trace != nullptr) traces_->End(number - restored_steps_);
  if (pace_watch_ != nullptr && last_measured_ns_ > 0) {
    pace_watch_->After(number, last_measured_ns_, [&](int device) {
      return executors_[static_cast<size_t>(device)]->counters().last_compute_ns;
    });
  }
  const int64_t check_steps = plan().replicas() > 1 ? options_.replica_check_steps : 0;
  if (check_steps > 0 && number % check_steps == 0) {
    const absl::Status status = ParametersHash().status();
    if (!status.ok()) return group_->Fail(status);
  }
  LossResult sum;
  AddResults(sum.loss, sum.correct);
  return StepResult{.loss = sum.loss / static_cast<double>(rows.size()),
                    .correct = sum.correct,
                    .rows = static_cast<int64_t>(rows.size()),
                    .learning_rate = step.update.learning_rate,
                    .gradient_norm = ExecutorOf(0).gradient_norm()};
}

absl::StatusOr<Evaluation> PipelineTrainer::Evaluate(const Dataset& data,
                                                     const StopFunction& stop) {
  RETURN_IF_ERROR(group_->status());
  RETURN_IF_ERROR(CheckData(data));
  Evaluation evaluation;
  while (evaluation.rows < data.rows()) {
    if (stop) {
      ASSIGN_OR_RETURN(const bool must_stop, stop());
      if (must_stop) break;
    }
    RETURN_IF_ERROR(RunForward(data, {.loss = true}, evaluation));
  }
  evaluation.loss /= static_cast<double>(std::max<int64_t>(evaluation.rows, 1));
  return evaluation;
}

absl::Status PipelineTrainer::RunForward(const Dataset& data, Wanted wanted, Evaluation& sums) {
  const int64_t begin = sums.rows;
  const int64_t end = std::min(begin + plan().batch_rows(), data.rows());
  evaluation_rows_.clear();
  for (int64_t row = begin; row < end; ++row) evaluation_rows_.push_back(row);
  const Batch batch{.data = &data,
                    .rows = evaluation_rows_,
                    .step = steps_,
                    .first_sample = begin,
                    .wants_loss = wanted.loss,
                    .wants_outputs = wanted.outputs};
  RETURN_IF_ERROR(RunSchedule([&](int device, bool is_measured) {
    return executors_[static_cast<size_t>(device)]->Evaluate(OwnBatch(batch, device), is_measured);
  }));
  sums.rows = end;
  if (wanted.loss) AddResults(sums.loss, sums.correct);
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> PipelineTrainer::Predict(const Dataset& data, const TakeOutputs& take) {
  RETURN_IF_ERROR(group_->status());
  const bool has_targets = data.spec().target.kind != TargetSpec::Kind::kNone;
  const TargetSpec target = has_targets ? run_.profile.loss_spec.target : TargetSpec{};
  RETURN_IF_ERROR(CheckFits(data.spec(), run_.model.input, target));
  RETURN_IF_ERROR(group_->Agree(group_->OnEach(
      [&](int device) { return executors_[static_cast<size_t>(device)]->PrepareOutputs(); })));
  absl::StatusOr<Evaluation> evaluation = PredictAll(data, take);
  RETURN_IF_ERROR(group_->Agree(evaluation.status()));
  return evaluation;
}

absl::StatusOr<Evaluation> PipelineTrainer::PredictAll(const Dataset& data,
                                                       const TakeOutputs& take) {
  const bool has_targets = data.spec().target.kind != TargetSpec::Kind::kNone;
  Evaluation evaluation;
  while (evaluation.rows < data.rows()) {
    const int64_t begin = evaluation.rows;
    RETURN_IF_ERROR(RunForward(data, {.loss = has_targets, .outputs = true}, evaluation));
    const int64_t rows = evaluation.rows - begin;
    ASSIGN_OR_RETURN(const std::vector<float> values,
                     GatherOutputs(*group_, executors_, run_, rows));
    RETURN_IF_ERROR(take({.first_row = begin, .rows = rows, .values = values}));
  }
  evaluation.loss /= static_cast<double>(std::max<int64_t>(evaluation.rows, 1));
  return evaluation;
}

Batch PipelineTrainer::OwnBatch(const Batch& batch, int device) const {
  Batch own = batch;
  own.first_micro_batch = group_->mesh().replica_of(device) * plan().schedule.num_micro_batches;
  return own;
}

DeviceReport PipelineTrainer::ReportPlanned(int device) const {
  const partition::RankReport& predicted = run_.report.of(group_->mesh().rank_of(device));
  return {.predicted_peak_bytes = predicted.peak_bytes(),
          .predicted_stash_bytes = predicted.training.peak_stash_bytes,
          .predicted_sent = partition::SentBytesOf(run_, group_->mesh().rank_of(device),
                                                   group_->mesh().replica_of(device))};
}

void PipelineTrainer::AddMeasurements(int index, DeviceReport& report) const {
  const kernels::Device& device = group_->device(index);
  const ExecutorCounters& counters = executors_[static_cast<size_t>(index)]->counters();
  report.device = device.name();
  report.measured_peak_bytes = counters.peak_bytes;
  report.overhead_bytes = device.overhead_bytes();
  if (const kernels::Device* const beside = group_->beside(index)) {
    report.overhead_bytes += beside->overhead_bytes();
  }
  report.peak_stashed = counters.peak_stashed;
  report.measured_stash_bytes = counters.peak_stash_bytes;
  report.measured_sent = counters.sent;
  report.graphs = counters.graphs;
  report.graph_issues = counters.graph_issues;
  report.plain_issues = counters.plain_issues;
  report.why_plain = counters.why_plain;
  if (measured_ns_ > 0) {
    report.busy = static_cast<double>(counters.compute_ns) / static_cast<double>(measured_ns_);
  }
}

absl::StatusOr<std::vector<DeviceReport>> PipelineTrainer::Devices() {
  std::vector<DeviceReport> reports;
  for (int device = 0; device < plan().num_devices(); ++device) {
    reports.push_back(ReportPlanned(device));
  }
  for (const int device : group_->local_devices()) {
    AddMeasurements(device, reports[static_cast<size_t>(device)]);
  }
  if (options_.rendezvous == nullptr) return reports;
  const DeviceReport& own = reports[static_cast<size_t>(options_.rendezvous->rank())];
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group_->Gather(MeasurementsToText(own)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    RETURN_IF_ERROR(ReadMeasurements(all[rank], reports[rank]));
  }
  return reports;
}

absl::Status PipelineTrainer::CheckTraced() {
  RETURN_IF_ERROR(group_->status());
  if (traces_ == nullptr) {
    return absl::FailedPreconditionError("steps are not traced: set TrainerOptions::trace");
  }
  if (steps_ == restored_steps_) return absl::FailedPreconditionError("no step has been done yet");
  return absl::OkStatus();
}

absl::StatusOr<schedule::Trace> PipelineTrainer::LastTrace() {
  RETURN_IF_ERROR(CheckTraced());
  return traces_->Last(steps_ - restored_steps_);
}

absl::StatusOr<schedule::Costs> PipelineTrainer::MeasuredCosts() {
  RETURN_IF_ERROR(CheckTraced());
  std::vector<schedule::StageMemory> memory;
  for (const partition::StageReport& stage : run_.report.stages) memory.push_back(stage.memory);
  return MeasureCosts(traces_->Recent(steps_ - restored_steps_), run_.updates_in_backward(),
                      std::move(memory), run_.lowered.collectives);
}

absl::StatusOr<std::string> PipelineTrainer::ParametersHash() {
  RETURN_IF_ERROR(group_->status());
  return HashParameters(*group_, executors_, run_.profile.parameters);
}

absl::StatusOr<std::vector<float>> PipelineTrainer::Parameter(const std::string& name) {
  RETURN_IF_ERROR(group_->status());
  ASSIGN_OR_RETURN(const ParameterId id, run_.profile.parameters.Find(name));
  const ModelParameter& parameter = run_.profile.parameters[id];
  const StageId stage(plan().stage_of(parameter.layer));
  return CopyParameter(*group_, executors_, parameter,
                       group_->mesh().device_of(run_.lowered.training.rank_of(stage), 0));
}

absl::Status PipelineTrainer::SetParameter(const std::string& name,
                                           absl::Span<const float> values) {
  RETURN_IF_ERROR(group_->status());
  ASSIGN_OR_RETURN(const ParameterId id, run_.profile.parameters.Find(name));
  return engine::SetParameter(*group_, executors_, run_.profile.parameters[id], values);
}

absl::Status PipelineTrainer::BeginSave(const std::string& folder, const SaveOptions& options) {
  RETURN_IF_ERROR(group_->status());
  RETURN_IF_ERROR(CheckMayTrain());
  if (is_saving()) return absl::FailedPreconditionError("another checkpoint is being saved");
  SaveTask task = {.folder = folder, .retention = options.retention, .deadline = options_.deadline};
  task.manifest = {.program = options.program,
                   .step = steps_,
                   .samples = samples_,
                   .position = options.position,
                   .seed = options_.seed,
                   .model_source = options.model_source,
                   .encoding = options.encoding,
                   .options = options.options};
  return saved_state_->Begin(std::move(task));
}

absl::StatusOr<std::string> PipelineTrainer::FinishSave() {
  RETURN_IF_ERROR(group_->status());
  return saved_state_->Finish();
}

absl::StatusOr<RestoredCheckpoint> PipelineTrainer::Restore(const std::string& path) {
  RETURN_IF_ERROR(group_->status());
  ASSIGN_OR_RETURN(RestoredCheckpoint restored, saved_state_->Restore(path));
  steps_ = restored_steps_ = restored.manifest.step;
  samples_ = restored.manifest.samples;
  return restored;
}

absl::StatusOr<PreparedRun> PrepareFor(const Model& model, const partition::Plan& plan,
                                       const TrainerOptions& options) {
  RETURN_IF_ERROR(CheckTrainer(plan, options));
  return PrepareRun(model, {.plan = plan,
                            .optimizer = options.optimizer,
                            .device = options.device,
                            .transfers = TransfersOf(GroupOptionsOf(plan, options)),
                            .shares_results = options.rendezvous != nullptr});
}

}  // namespace

absl::StatusOr<std::vector<float>> Trainer::Predict(const Dataset& data) {
  std::vector<float> all;
  const auto take = [&](const Outputs& outputs) {
    all.insert(all.end(), outputs.values.begin(), outputs.values.end());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Predict(data, take).status());
  return all;
}

absl::StatusOr<std::string> Trainer::Save(const std::string& folder, const SaveOptions& options) {
  RETURN_IF_ERROR(BeginSave(folder, options));
  return FinishSave();
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Model& model,
                                                         const partition::Plan& plan,
                                                         const TrainerOptions& options) {
  absl::StatusOr<PreparedRun> run = PrepareFor(model, plan, options);
  RETURN_IF_ERROR(TellOthers(options, run.status()));
  return Create(*std::move(run), options);
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(PreparedRun run,
                                                         const TrainerOptions& options) {
  auto trainer = std::make_unique<PipelineTrainer>(std::move(run), options);
  RETURN_IF_ERROR(TellOthers(options, trainer->Initialize()));
  return trainer;
}

}  // namespace stagecoach::engine
