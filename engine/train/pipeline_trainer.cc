#include "engine/train/pipeline_trainer.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/system/system_calls.h"
#include "engine/runtime/device/choices.h"
#include "engine/train/fingerprint.h"
#include "engine/train/gathered_outputs.h"
#include "engine/train/trainer_checks.h"
#include "partition/plan/compiled_plan.h"

namespace stagecoach::engine {

absl::Status PipelineTrainer::Initialize() {
  RETURN_IF_ERROR(CheckTrainer(run_.plan(), options_));
  RETURN_IF_ERROR(CheckPreparedFor(run_, options_));

  RankGroupOptions group = GroupOptionsOf(run_.plan(), options_);
  group.ties = run_.profile.parameters.ties();
  // F, which may be repeated, B and W; a GPU is warmed up by doing each twice, and F of evaluation.
  for (const partition::LayerCost& layer : run_.profile.layers) {
    group.part_rounds += 5 * layer.forward_exchange.rounds +
                         3 * layer.backward_exchange.rounds +  // which evaluation exchanges, too
                         2 * layer.input_gradient_exchange.rounds +
                         2 * layer.weight_exchange.rounds;
  }
  group.part_rounds *= plan().schedule.num_micro_batches;
  group.fingerprint = FingerprintOf(run_, options_);
  ASSIGN_OR_RETURN(group_, RankGroup::Connect(group, run_.compiled.lowered->training));
  RETURN_IF_ERROR(CreateRings());
  executors_.resize(static_cast<size_t>(plan().num_devices()));
  part_sums_.resize(executors_.size());
  // No rank begins before all are ready: a rank that waits for another keeps its GPU busy.
  RETURN_IF_ERROR(
      group_->Agree(group_->RunCollective([&](int device) { return CreateExecutor(device); })));
  if (options_.rendezvous != nullptr) {
    RETURN_IF_ERROR(group_->DescribeBy([this] { return ExecutorOf(0).Activity(); }));
  }
  RETURN_IF_ERROR(CheckChoices());
  evaluation_rows_.reserve(static_cast<size_t>(plan().batch_rows()));
  saved_state_ =
      std::make_unique<SavedState>(run_, *group_, executors_, base::SystemCalls::Kernel());
  if (options_.on_slow_rank) {
    step_time_monitor_ = std::make_unique<StepTimeMonitor>(*group_, options_.on_slow_rank);
  }
  if (options_.trace) traces_ = std::make_unique<StepTraces>(run_.compiled.lowered->training);
  return absl::OkStatus();
}

absl::Status PipelineTrainer::CreateRings() {
  std::vector<RecorderOwner> owners;
  for (const int device : group_->local_devices()) {
    owners.push_back({.device = device,
                      .devices = plan().num_devices(),
                      .replica = group_->mesh().column_of(device),
                      .replicas = group_->mesh().num_columns(),
                      .name = group_->names()[static_cast<size_t>(device)]});
  }
  ASSIGN_OR_RETURN(recorders_, FlightRecorders::Create(options_.recorders, owners));
  return absl::OkStatus();
}

absl::Status PipelineTrainer::Explained(const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status) || options_.rendezvous != nullptr) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", recorders_->Explain()));
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

TensorPart PipelineTrainer::PartOf(int device) const {
  return {.parts = group_->mesh().num_parts(), .index = group_->mesh().part_of(device)};
}

absl::Status PipelineTrainer::CreateExecutor(int device) {
  const schedule::Rank rank = group_->mesh().rank_of(device);
  if (Transport* const parts = group_->parts(device); parts != nullptr) {
    part_sums_[static_cast<size_t>(device)] =
        std::make_unique<TransportPartSums>(group_->device(device), *parts, options_.deadline);
  }
  std::vector<std::unique_ptr<Stage>> stages;
  for (StageId id : run_.compiled.lowered->training.StagesOf(rank)) {
    const int index = id.value();
    StageOptions options{.id = id,
                         .first_layer = plan().first(index),
                         .last_layer = plan().last(index),
                         .is_first = run_.compiled.lowered->training.is_first(id),
                         .is_last = run_.compiled.lowered->training.is_last(id),
                         .splits_backward = run_.compiled.lowered->training.SplitsBackward(id),
                         .trains = plan().trains(),
                         .input = run_.profile.inputs[static_cast<size_t>(plan().first(index))],
                         .vocabulary = index == 0 ? run_.model.vocabulary : 0,
                         .document_positions = DocumentPositions(run_.model),
                         .micro_batch_rows = plan().micro_batch_rows,
                         .micro_batches = plan().schedule.num_micro_batches,
                         .replication = plan().replication,
                         .replica = group_->mesh().replica_of(device),
                         .part = PartOf(device),
                         .part_sums = part_sums_[static_cast<size_t>(device)].get(),
                         .optimizer = options_.optimizer,
                         .cached_positions = run_.model.cached_positions,
                         .output_rows = OutputRows(run_.model, plan().micro_batch_rows),
                         .updates_in_backward = run_.updates_in_backward(),
                         .skips = run_.profile.skips};
    for (const int layer : plan().recomputed) {
      if (plan().stage_of(layer) == index)
        options.recomputed.push_back(layer - plan().first(index));
    }
    if (!options_.device.are_alike()) {
      for (int layer = plan().first(index); layer <= plan().last(index); ++layer) {
        const partition::LayerCost& cost = run_.profile.layers[static_cast<size_t>(layer)];
        options.workspace_bytes.push_back(cost.memory.workspace_bytes);
      }
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage, Stage::Create(group_->device(device), run_.model,
                                                                 run_.profile.parameters, options));
    STAGECOACH_CHECK(stage->memory() == run_.compiled.of(id).memory,
                     absl::StrCat("stage ", index, " is not laid out as it was predicted"));
    stages.push_back(std::move(stage));
  }
  std::vector<Executor::StagesOfTie> ties;
  for (const ModelParameter& second : run_.profile.parameters.all()) {
    if (!second.is_copy() || !second.has_tied_gradient() || !plan().trains()) continue;
    const ModelParameter& first = run_.profile.parameters[second.tied_to];
    ties.push_back({first.id, second.id, StageId(plan().stage_of(first.layer)),
                    StageId(plan().stage_of(second.layer))});
  }
  const partition::RankReport& memory = run_.compiled.of(rank);
  ASSIGN_OR_RETURN(
      executors_[static_cast<size_t>(device)],
      Executor::Create({.device = &group_->device(device),
                        .number = device,
                        .transport = &group_->transport(device),
                        .recorder = &recorders_->of(device),
                        .beside = group_->beside(device),
                        .replicas = group_->replicas(device),
                        .part = PartOf(device),
                        .parts = group_->parts(device),
                        .deadline = options_.deadline,
                        .seed = options_.seed,
                        .draws_parameters = options_.draws_parameters,
                        .parameters = &run_.profile.parameters,
                        .ties = ties,
                        .output = run_.profile.output,
                        .clip_norm = options_.optimizer.clip_norm,
                        .collectives = run_.compiled.lowered->collectives,
                        .training = {plan().trains() ? &run_.compiled.lowered->training : nullptr,
                                     memory.training},
                        .evaluation = {&run_.compiled.lowered->evaluation, memory.evaluation}},
                       std::move(stages)));
  if (part_sums_[static_cast<size_t>(device)] != nullptr) {
    part_sums_[static_cast<size_t>(device)]->BeforeFlush(
        [executor = executors_[static_cast<size_t>(device)].get()] {
          return executor->AwaitFlushes();
        });
  }
  return absl::OkStatus();
}

absl::Status PipelineTrainer::RunSchedule(absl::FunctionRef<absl::Status(int, bool)> function) {
  // On an accelerator, only some runs are measured: early ones, so that there are some, and then
  // one in kMeasuredOf.
  constexpr int64_t kMeasuredOf = 16;
  const bool is_early = (runs_ & (runs_ - 1)) == 0;
  const bool is_measured = options_.device.kind == DeviceKind::kCpu || traces_ != nullptr ||
                           is_early || runs_ % kMeasuredOf == 0;
  ++runs_;
  const auto start = std::chrono::steady_clock::now();
  absl::Status status =
      group_->RunCollective([&](int device) { return Explained(function(device, is_measured)); });
  const auto took = std::chrono::steady_clock::now() - start;
  last_measured_ns_ =
      is_measured ? std::chrono::duration_cast<std::chrono::nanoseconds>(took).count() : 0;
  measured_ns_ += last_measured_ns_;
  return status;
}

absl::Status PipelineTrainer::CheckMayTrain() const {
  if (!plan().trains()) {
    return absl::FailedPreconditionError("the plan has no backward pass: it can only predict");
  }
  if (!averages_are_in_place_) return absl::OkStatus();
  return absl::FailedPreconditionError("the parameters have the values of their averages");
}

absl::Status PipelineTrainer::CheckData(const Dataset& data) const {
  if (run_.model.cached_positions > 0) {
    return absl::InvalidArgumentError("a model for generation has no loss");
  }
  return CheckFits(data.spec(), run_.model.input, run_.profile.loss_spec.target,
                   run_.model.vocabulary, run_.model.has_documents);
}

const Executor& PipelineTrainer::ExecutorOf(int replica) const {
  if (options_.rendezvous != nullptr) return own_executor();
  const StageId last(plan().num_stages() - 1);
  const schedule::Rank rank = run_.compiled.lowered->training.rank_of(last);
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
  RETURN_IF_ERROR(StartAverages());
  const bool knows_next = static_cast<int64_t>(next_rows.size()) == plan().batch_rows();
  const int64_t number = steps_ + 1;
  const absl::StatusOr<float> learning_rate = options_.learning_rate.At(number);
  if (!learning_rate.ok()) return group_->Fail(learning_rate.status());
  const std::vector<float>& weights = run_.profile.loss_spec.class_weights;
  const TrainStep step{.update = {.step = number, .learning_rate = *learning_rate},
                       .start = start,
                       .next = {.data = knows_next ? &data : nullptr,
                                .rows = next_rows,
                                .answers = CountAnswers(data, next_rows),
                                .answer_weight = WeighAnswers(data, next_rows, weights)}};
  schedule::Trace* const trace =
      traces_ == nullptr ? nullptr : &traces_->Begin(number - restored_steps_);
  const Batch batch{.data = &data,
                    .rows = rows,
                    .answers = CountAnswers(data, rows),
                    .answer_weight = WeighAnswers(data, rows, weights),
                    .step = number,
                    .first_sample = samples_};
  const absl::Status performed = RunSchedule([&](int device, bool is_measured) {
    TrainStep own = step;
    own.is_measured = is_measured;
    own.next = OwnBatch(step.next, device);
    const bool is_traced = group_->mesh().column_of(device) == 0;
    return executors_[static_cast<size_t>(device)]->Train(OwnBatch(batch, device), own,
                                                          is_traced ? trace : nullptr);
  });
  if (!performed.ok()) {
    const bool is_everywhere =
        can_lose_processes() && own_executor().updates() == Executor::Updates::kAllMust;
    if (!is_everywhere) return performed;
    RETURN_IF_ERROR(CompleteUpdates());  // the error is the next call's
  }
  if (trace != nullptr) traces_->End(number - restored_steps_);
  if (step_time_monitor_ != nullptr && last_measured_ns_ > 0 && performed.ok()) {
    step_time_monitor_->After(number, last_measured_ns_, [&](int device) {
      return executors_[static_cast<size_t>(device)]->counters().last_compute_ns;
    });
  }
  const int64_t check_steps = plan().replicas() > 1 ? options_.replica_check_steps : 0;
  if (performed.ok() && check_steps > 0 && number % check_steps == 0) {
    const absl::Status status = ParametersHash().status();
    if (!status.ok()) return group_->Fail(status);
  }
  LossResult sum;
  AddResults(sum.loss, sum.correct);
  StepResult taken = {.loss = sum.loss / batch.weight(),
                      .correct = sum.correct,
                      .rows = static_cast<int64_t>(rows.size()),
                      .answers = batch.answers,
                      .learning_rate = step.update.learning_rate,
                      .gradient_norm = ExecutorOf(0).gradient_norm()};
  RETURN_IF_ERROR(EndNonFinite(batch, taken, performed.ok()));
  // If another process is lost before this, the step is repeated: it has changed nothing.
  EndStep();
  return taken;
}

void PipelineTrainer::EndStep() {
  ++steps_;
  samples_ += plan().batch_rows();
}

absl::Status PipelineTrainer::CompleteUpdates() {
  return group_->ForEachLocalDevice(
      [&](int device) { return executors_[static_cast<size_t>(device)]->CompleteUpdates(); });
}

Executor& PipelineTrainer::own_executor() const {
  return *executors_[static_cast<size_t>(options_.rendezvous->rank())];
}

Evaluation PipelineTrainer::WithMeanLoss(Evaluation sums, const Dataset& data) {
  sums.loss /= data.spec().target.SamplesOf(std::max<int64_t>(sums.answers, 1));
  return sums;
}

absl::StatusOr<Evaluation> PipelineTrainer::Evaluate(const Dataset& data,
                                                     const StopFunction& stop) {
  RETURN_IF_ERROR(group_->status());
  RETURN_IF_ERROR(CheckData(data));
  return EvaluateAverages([&] { return EvaluateAll(data, stop); });
}

absl::StatusOr<Evaluation> PipelineTrainer::EvaluateAverages(
    absl::FunctionRef<absl::StatusOr<Evaluation>()> evaluate) {
  absl::StatusOr<Evaluation> evaluation = Evaluation();
  RETURN_IF_ERROR(WithAverages([&] {
    evaluation = evaluate();
    return evaluation.status();
  }));
  return evaluation;
}

absl::StatusOr<Evaluation> PipelineTrainer::AgreeOn(absl::StatusOr<Evaluation> own) {
  RETURN_IF_ERROR(group_->Agree(own.status()));
  return own;
}

absl::StatusOr<Evaluation> PipelineTrainer::EvaluateAll(const Dataset& data,
                                                        const StopFunction& stop) {
  Evaluation evaluation;
  while (evaluation.rows < data.rows()) {
    if (stop) {
      ASSIGN_OR_RETURN(const bool must_stop, stop());
      if (must_stop) break;
    }
    RETURN_IF_ERROR(RunForward(data, {.loss = true}, evaluation).status());
  }
  return WithMeanLoss(evaluation, data);
}

absl::StatusOr<Batch> PipelineTrainer::RunForward(const Dataset& data, Wanted wanted,
                                                  Evaluation& sums) {
  const int64_t begin = sums.rows;
  const int64_t end = std::min(begin + plan().batch_rows(), data.rows());
  evaluation_rows_.clear();
  for (int64_t row = begin; row < end; ++row) evaluation_rows_.push_back(row);
  const Batch batch{.data = &data,
                    .rows = evaluation_rows_,
                    .answers = CountAnswers(data, evaluation_rows_),
                    .step = steps_,
                    .first_sample = begin,
                    .wants_loss = wanted.loss,
                    .wants_outputs = wanted.outputs};
  RETURN_IF_ERROR(RunEvaluation(batch));
  sums.rows = end;
  sums.answers += batch.answers;
  if (wanted.loss) AddResults(sums.loss, sums.correct);
  return batch;
}

absl::Status PipelineTrainer::RunEvaluation(const Batch& batch) {
  return RunSchedule([&](int device, bool is_measured) {
    return executors_[static_cast<size_t>(device)]->Evaluate(OwnBatch(batch, device), is_measured);
  });
}

absl::StatusOr<Evaluation> PipelineTrainer::Predict(const Dataset& data, const TakeOutputs& take) {
  RETURN_IF_ERROR(group_->status());
  if (run_.model.cached_positions > 0) {
    return absl::InvalidArgumentError("a model for generation is given positions: see Generator");
  }
  const bool has_targets = data.spec().target.kind != TargetSpec::Kind::kNone;
  const TargetSpec target = has_targets ? run_.profile.loss_spec.target : TargetSpec{};
  RETURN_IF_ERROR(CheckFits(data.spec(), run_.model.input, target, run_.model.vocabulary,
                            run_.model.has_documents));
  RETURN_IF_ERROR(PrepareOutputs());
  return EvaluateAverages([&] { return AgreeOn(PredictAll(data, take)); });
}

absl::StatusOr<std::vector<float>> PipelineTrainer::Pass(const Dataset& sequences,
                                                         const PassedRows& passed) {
  RETURN_IF_ERROR(group_->status());
  RETURN_IF_ERROR(PrepareOutputs());
  const Batch batch{.data = &sequences,
                    .rows = passed.rows,
                    .ends = passed.ends,
                    .rows_are_sequences = passed.are_sequences,
                    .step = steps_,
                    .wants_loss = false,
                    .wants_outputs = passed.wants_outputs};
  RETURN_IF_ERROR(RunEvaluation(batch));
  if (!passed.wants_outputs) return std::vector<float>();
  return GatherOutputs(*group_, executors_, run_, batch);
}

absl::Status PipelineTrainer::PrepareOutputs() {
  if (has_prepared_outputs_) return absl::OkStatus();
  RETURN_IF_ERROR(group_->Agree(group_->ForEachLocalDevice(
      [&](int device) { return executors_[static_cast<size_t>(device)]->PrepareOutputs(); })));
  has_prepared_outputs_ = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> PipelineTrainer::PrepareChoice(int64_t ids) {
  RETURN_IF_ERROR(group_->status());
  if (!run_.profile.loss_spec.is_computed_by_layer || options_.rendezvous != nullptr) return false;
  // Doing so later would cost the caches.
  RETURN_IF_ERROR(PrepareOutputs());
  RETURN_IF_ERROR(group_->ForEachLocalDevice(
      [&](int device) { return executors_[static_cast<size_t>(device)]->PrepareChoice(ids); }));
  return true;
}

absl::Status PipelineTrainer::Choose(const Dataset& sequence, int64_t last, int64_t most,
                                     const TakeId& take) {
  RETURN_IF_ERROR(group_->status());
  evaluation_rows_.assign(1, last);
  const Batch batch{.data = &sequence,
                    .rows = evaluation_rows_,
                    .step = steps_,
                    .first_sample = last,
                    .wants_loss = false,
                    .wants_choice = true};
  if (plan().num_devices() == 1 && plan().schedule.num_micro_batches == 1) {
    return RunSchedule([&](int device, bool is_measured) {
      return executors_[static_cast<size_t>(device)]->ChooseOn(batch, most, take, is_measured);
    });
  }
  RETURN_IF_ERROR(RunEvaluation(batch));
  take(ExecutorOf(0).ChoiceAfter(last));
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> PipelineTrainer::PredictAll(const Dataset& data,
                                                       const TakeOutputs& take) {
  const bool has_targets = data.spec().target.kind != TargetSpec::Kind::kNone;
  Evaluation evaluation;
  while (evaluation.rows < data.rows()) {
    const int64_t begin = evaluation.rows;
    const bool wants_outputs = static_cast<bool>(take);
    ASSIGN_OR_RETURN(const Batch batch,
                     RunForward(data, {.loss = has_targets, .outputs = wants_outputs}, evaluation));
    if (!wants_outputs) continue;
    ASSIGN_OR_RETURN(const std::vector<float> values,
                     GatherOutputs(*group_, executors_, run_, batch));
    RETURN_IF_ERROR(take({.first_row = begin, .rows = evaluation.rows - begin, .values = values}));
  }
  return WithMeanLoss(evaluation, data);
}

absl::StatusOr<Evaluation> PipelineTrainer::EvaluateRows(const Dataset& data,
                                                         const TakeEvaluations& take) {
  RETURN_IF_ERROR(group_->status());
  RETURN_IF_ERROR(CheckData(data));
  if (plan().micro_batch_rows != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a micro-batch has ", plan().micro_batch_rows,
                     " rows; to be evaluated one by one, each needs its own"));
  }
  return EvaluateAverages([&] { return AgreeOn(EvaluateAllRows(data, take)); });
}

absl::StatusOr<Evaluation> PipelineTrainer::EvaluateAllRows(const Dataset& data,
                                                            const TakeEvaluations& take) {
  const int micro_batches = plan().schedule.num_micro_batches;
  Evaluation sums;
  std::vector<Evaluation> rows;
  while (sums.rows < data.rows()) {
    const int64_t begin = sums.rows;
    RETURN_IF_ERROR(RunForward(data, {.loss = true}, sums).status());
    rows.clear();
    for (int64_t row = begin; row < sums.rows; ++row) {
      const auto index = static_cast<int>(row - begin);  // of its micro-batch, over all replicas
      const int replica = index / micro_batches;
      const LossResult result =
          ExecutorOf(replica).Result(replica, MicroBatch(index % micro_batches));
      rows.push_back(WithMeanLoss({.loss = result.loss,
                                   .correct = result.correct,
                                   .rows = 1,
                                   .answers = data.AnswersOf(row)},
                                  data));
    }
    RETURN_IF_ERROR(take(rows));
  }
  return WithMeanLoss(sums, data);
}

Batch PipelineTrainer::OwnBatch(const Batch& batch, int device) const {
  Batch own = batch;
  own.first_micro_batch = group_->mesh().replica_of(device) * plan().schedule.num_micro_batches;
  return own;
}

}  // namespace stagecoach::engine
