#include "engine/trainer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "engine/executor.h"
#include "engine/measured_costs.h"
#include "engine/profile.h"
#include "engine/step_traces.h"
#include "engine/transport/transport.h"
#include "kernels/cpu/cpu_device.h"

namespace stagecoach::engine {
namespace {

using schedule::Schedule;

// One device with everything that runs on it.
struct RankState {
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Executor> executor;  // after the device: it must die first
};

class PipelineTrainer final : public Trainer {
 public:
  PipelineTrainer(const Model& model, const partition::Plan& plan, const TrainerOptions& options)
      : model_(model), plan_(plan), options_(options) {}

  ~PipelineTrainer() override {
    // An executor owns memory of its device, and jobs of the device use the executor.
    for (RankState& rank : ranks_) {
      if (rank.device != nullptr) rank.device->stream().Run([] {});
    }
  }

  absl::Status Initialize();

  absl::StatusOr<StepResult> Step(const Dataset& data, absl::Span<const int64_t> rows) override;
  absl::StatusOr<Evaluation> Evaluate(const Dataset& data, const std::atomic<bool>* stop) override;
  const partition::Plan& plan() const override { return plan_; }
  int64_t steps() const override { return steps_; }
  std::vector<DeviceReport> Devices() const override;
  absl::StatusOr<schedule::Trace> LastTrace() override;
  absl::StatusOr<schedule::Costs> MeasuredCosts() override;
  absl::StatusOr<std::string> ParametersHash() override;
  absl::StatusOr<std::vector<float>> Parameter(const std::string& name) override;

 private:
  // Runs a function for one rank on its device.
  struct RankJob final : kernels::Job {
    void Run() override { status = (*function)(rank); }
    const absl::FunctionRef<absl::Status(int)>* function = nullptr;
    int rank = 0;
    absl::Status status;
    kernels::Event done;
  };

  absl::Status CreateRank(int rank);
  absl::Status OnAllRanks(absl::FunctionRef<absl::Status(int)> function);
  // The same for a run of the schedule: the first rank that fails ends the waits of the others, and
  // its error poisons the trainer.
  absl::Status RunSchedule(absl::FunctionRef<absl::Status(int)> function);
  // What poisons the trainer, if anything.
  absl::Status FirstError() {
    base::MutexLock lock(mutex_);
    return poison_;
  }
  absl::Status CheckTraced();
  absl::Status CheckData(const Dataset& data) const;
  LossResult SumResults() const;

  const Model model_;
  const partition::Plan plan_;
  const TrainerOptions options_;
  Schedule training_, evaluation_;
  int64_t output_elements_ = 0;
  int total_parameters_ = 0;
  partition::PlanReport predicted_;
  std::vector<Shape> stage_input_;    // of one sample
  std::vector<int> first_parameter_;  // of each stage
  std::vector<RankState> ranks_;
  std::vector<RankJob> jobs_;
  std::vector<int64_t> evaluation_rows_;
  std::unique_ptr<StepTraces> traces_;  // null without tracing
  Stage* loss_stage_ = nullptr;
  Executor* loss_executor_ = nullptr;
  int64_t steps_ = 0;
  int64_t run_ns_ = 0;
  base::Mutex mutex_;
  absl::Status poison_ ABSL_GUARDED_BY(mutex_);
};

absl::Status PipelineTrainer::Initialize() {
  RETURN_IF_ERROR(CheckPlan(plan_));
  RETURN_IF_ERROR(CheckSupported(plan_));
  RETURN_IF_ERROR(CheckOptimizer(options_.optimizer));
  RETURN_IF_ERROR(CheckLearningRate(options_.learning_rate));
  if (plan_.num_layers != model_.num_layers()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan is for ", plan_.num_layers,
                                                   " layers, the model has ", model_.num_layers()));
  }
  ASSIGN_OR_RETURN(training_, LoweredSchedule(plan_));
  ASSIGN_OR_RETURN(evaluation_, LoweredEvaluation(plan_));

  ASSIGN_OR_RETURN(const ModelProfile profile,
                   AnalyzeModel(model_, {.micro_batch_rows = plan_.micro_batch_rows,
                                         .micro_batches = plan_.micro_batches(),
                                         .optimizer = options_.optimizer,
                                         .threads = options_.threads_per_device}));
  output_elements_ = profile.output.elements();
  ASSIGN_OR_RETURN(predicted_, ReportPlan(plan_, profile.layers, profile.loss));
  for (int stage = 0; stage < plan_.num_stages(); ++stage) {
    stage_input_.push_back(profile.inputs[static_cast<size_t>(plan_.first(stage))]);
    first_parameter_.push_back(total_parameters_);
    for (int layer = plan_.first(stage); layer <= plan_.last(stage); ++layer) {
      total_parameters_ += profile.parameter_tensors[static_cast<size_t>(layer)];
    }
  }

  const int ranks = training_.num_ranks();
  std::vector<std::unique_ptr<Transport>> transports =
      CreateInProcessTransports({.ranks = ranks,
                                 .max_outstanding = 2 * plan_.micro_batches() * plan_.num_stages(),
                                 .max_gather = total_parameters_});
  ranks_.resize(static_cast<size_t>(ranks));
  jobs_ = std::vector<RankJob>(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    state.transport = std::move(transports[static_cast<size_t>(rank)]);
    ASSIGN_OR_RETURN(state.device, kernels::CreateCpuDevice(
                                       {.index = rank,
                                        .threads = options_.threads_per_device,
                                        .memory_limit_bytes = options_.device_memory_bytes}));
  }
  RETURN_IF_ERROR(OnAllRanks([&](int rank) { return CreateRank(rank); }));
  loss_executor_ =
      ranks_[static_cast<size_t>(training_.rank_of(StageId(plan_.num_stages() - 1)).value())]
          .executor.get();
  loss_stage_ = loss_executor_->stages().back().get();
  evaluation_rows_.reserve(static_cast<size_t>(plan_.batch_rows()));
  if (options_.trace) traces_ = std::make_unique<StepTraces>(training_);
  return absl::OkStatus();
}

absl::Status PipelineTrainer::CreateRank(int rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<int> first_parameter;
  for (StageId id : training_.StagesOf(schedule::Rank(rank))) {
    const int index = id.value();
    StageOptions options{.id = id,
                         .first_layer = plan_.first(index),
                         .last_layer = plan_.last(index),
                         .is_first = training_.is_first(id),
                         .is_last = training_.is_last(id),
                         .splits_backward = training_.SplitsBackward(id),
                         .input = stage_input_[static_cast<size_t>(index)],
                         .micro_batch_rows = plan_.micro_batch_rows,
                         .micro_batches = plan_.micro_batches(),
                         .optimizer = options_.optimizer};
    ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage, Stage::Create(*state.device, model_, options));
    STAGECOACH_CHECK(stage->memory() == predicted_.of(id).memory,
                     absl::StrCat("stage ", index, " is not laid out as it was predicted"));
    stages.push_back(std::move(stage));
    first_parameter.push_back(first_parameter_[static_cast<size_t>(index)]);
  }
  const partition::RankReport& predicted = predicted_.of(schedule::Rank(rank));
  ASSIGN_OR_RETURN(state.executor,
                   Executor::Create({.device = state.device.get(),
                                     .transport = state.transport.get(),
                                     .deadline = options_.deadline,
                                     .seed = options_.seed,
                                     .total_parameters = total_parameters_,
                                     .training = {&training_, predicted.training},
                                     .evaluation = {&evaluation_, predicted.evaluation}},
                                    std::move(stages), std::move(first_parameter)));
  return absl::OkStatus();
}

absl::Status PipelineTrainer::OnAllRanks(absl::FunctionRef<absl::Status(int)> function) {
  for (size_t rank = 0; rank < jobs_.size(); ++rank) {
    RankJob& job = jobs_[rank];
    job.function = &function;
    job.rank = static_cast<int>(rank);
    kernels::Stream& stream = ranks_[rank].device->stream();
    // The queue is empty between calls, so there is room.
    STAGECOACH_CHECK_OK(stream.Submit(job));
    STAGECOACH_CHECK_OK(stream.Record(job.done));
  }
  absl::Status first;
  for (RankJob& job : jobs_) {
    // Ranks wait for each other with deadlines, so each comes to an end by itself.
    STAGECOACH_CHECK_OK(job.done.Wait(base::Deadline::Never()));
    first.Update(job.status);
  }
  return first;
}

absl::Status PipelineTrainer::RunSchedule(absl::FunctionRef<absl::Status(int)> function) {
  const auto start = std::chrono::steady_clock::now();
  const absl::Status any = OnAllRanks([&](int rank) {
    absl::Status status = function(rank);
    if (!status.ok()) {
      base::MutexLock lock(mutex_);
      poison_.Update(status);
      ranks_[static_cast<size_t>(rank)].transport->Abort(status);
    }
    return status;
  });
  run_ns_ +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count();
  return any.ok() ? any : FirstError();
}

absl::Status PipelineTrainer::CheckData(const Dataset& data) const {
  const int64_t features = model_.input.elements();
  if (data.features() != features || data.classes() > output_elements_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data has ", data.features(), " features and ", data.classes(),
                     " classes; the model takes ", features, " features and gives ",
                     output_elements_, " outputs"));
  }
  return absl::OkStatus();
}

LossResult PipelineTrainer::SumResults() const {
  LossResult sum;
  for (int i = 0; i < plan_.micro_batches(); ++i) {
    const LossResult result = loss_stage_->Result(MicroBatch(i));
    sum.loss += result.loss;
    sum.correct += result.correct;
  }
  return sum;
}

absl::StatusOr<StepResult> PipelineTrainer::Step(const Dataset& data,
                                                 absl::Span<const int64_t> rows) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(FirstError());
  RETURN_IF_ERROR(CheckData(data));
  if (static_cast<int64_t>(rows.size()) != plan_.batch_rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step takes ", plan_.batch_rows(), " rows, not ", rows.size()));
  }
  const int64_t number = steps_ + 1;
  const TrainStep step{
      .update = {.step = number, .learning_rate = options_.learning_rate.At(number)},
      .clip_norm = options_.optimizer.clip_norm,
      .start = start};
  schedule::Trace* const trace = traces_ == nullptr ? nullptr : &traces_->Begin(number);
  const Batch batch{&data, rows};
  RETURN_IF_ERROR(RunSchedule([&](int rank) {
    return ranks_[static_cast<size_t>(rank)].executor->Train(batch, step, trace);
  }));
  steps_ = number;
  if (trace != nullptr) traces_->End(number);
  const LossResult sum = SumResults();
  return StepResult{.loss = sum.loss / static_cast<double>(rows.size()),
                    .correct = sum.correct,
                    .rows = static_cast<int64_t>(rows.size()),
                    .learning_rate = step.update.learning_rate,
                    .gradient_norm = loss_executor_->gradient_norm()};
}

absl::StatusOr<Evaluation> PipelineTrainer::Evaluate(const Dataset& data,
                                                     const std::atomic<bool>* stop) {
  RETURN_IF_ERROR(FirstError());
  RETURN_IF_ERROR(CheckData(data));
  Evaluation evaluation;
  for (int64_t begin = 0; begin < data.rows(); begin += plan_.batch_rows()) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) break;
    const int64_t end = std::min(begin + plan_.batch_rows(), data.rows());
    evaluation_rows_.clear();
    for (int64_t row = begin; row < end; ++row) evaluation_rows_.push_back(row);
    const Batch batch{&data, evaluation_rows_};
    RETURN_IF_ERROR(RunSchedule(
        [&](int rank) { return ranks_[static_cast<size_t>(rank)].executor->Evaluate(batch); }));
    const LossResult sum = SumResults();
    evaluation.rows = end;
    evaluation.loss += sum.loss;
    evaluation.correct += sum.correct;
  }
  evaluation.loss /= static_cast<double>(std::max<int64_t>(evaluation.rows, 1));
  return evaluation;
}

std::vector<DeviceReport> PipelineTrainer::Devices() const {
  std::vector<DeviceReport> reports;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankState& state = ranks_[rank];
    const ExecutorCounters& counters = state.executor->counters();
    const partition::RankReport& predicted = predicted_.ranks[rank];
    DeviceReport report = {.device = state.device->name(),
                           .stages = {},
                           .predicted_peak_bytes = predicted.peak_bytes(),
                           .measured_peak_bytes = counters.peak_bytes,
                           .peak_stashed = counters.peak_stashed,
                           .predicted_stash_bytes = predicted.training.peak_stash_bytes,
                           .measured_stash_bytes = counters.peak_stash_bytes};
    for (const std::unique_ptr<Stage>& stage : state.executor->stages()) {
      report.stages.push_back({.stage = stage->options().id.value(),
                               .first_layer = stage->options().first_layer,
                               .last_layer = stage->options().last_layer,
                               .parameters = stage->parameter_count()});
    }
    if (run_ns_ > 0) {
      report.busy = static_cast<double>(counters.compute_ns) / static_cast<double>(run_ns_);
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

absl::Status PipelineTrainer::CheckTraced() {
  RETURN_IF_ERROR(FirstError());
  if (traces_ == nullptr) {
    return absl::FailedPreconditionError("steps are not traced: set TrainerOptions::trace");
  }
  if (steps_ == 0) return absl::FailedPreconditionError("no step has been done yet");
  return absl::OkStatus();
}

absl::StatusOr<schedule::Trace> PipelineTrainer::LastTrace() {
  RETURN_IF_ERROR(CheckTraced());
  return traces_->Last(steps_);
}

absl::StatusOr<schedule::Costs> PipelineTrainer::MeasuredCosts() {
  RETURN_IF_ERROR(CheckTraced());
  std::vector<schedule::StageMemory> memory;
  for (const partition::StageReport& stage : predicted_.stages) memory.push_back(stage.memory);
  const bool steps_in_backward = options_.optimizer.clip_norm == 0.0F;
  return MeasureCosts(traces_->Recent(steps_), steps_in_backward, std::move(memory));
}

absl::StatusOr<std::string> PipelineTrainer::ParametersHash() {
  RETURN_IF_ERROR(FirstError());
  // Each tensor is hashed where it is; then the hashes are, in order of layers.
  std::vector<std::string> digests(static_cast<size_t>(total_parameters_));
  RETURN_IF_ERROR(OnAllRanks([&](int rank) {
    for (const auto& stage : ranks_[static_cast<size_t>(rank)].executor->stages()) {
      int index = first_parameter_[static_cast<size_t>(stage->options().id.value())];
      for (int i = 0; i < stage->num_parameters(); ++i, ++index) {
        const Tensor& value = stage->parameter(i);
        base::Hasher hasher;
        hasher.Update(absl::MakeConstSpan(static_cast<const std::byte*>(value.data),
                                          static_cast<size_t>(value.bytes())));
        digests[static_cast<size_t>(index)] = hasher.HexDigest();
      }
    }
    return absl::OkStatus();
  }));
  base::Hasher hasher;
  for (const std::string& digest : digests) {
    hasher.Update(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(digest.data()), digest.size()));
  }
  return hasher.HexDigest();
}

absl::StatusOr<std::vector<float>> PipelineTrainer::Parameter(const std::string& name) {
  RETURN_IF_ERROR(FirstError());
  std::vector<std::string> names;
  for (const RankState& rank : ranks_) {
    for (const auto& stage : rank.executor->stages()) {
      for (int i = 0; i < stage->num_parameters(); ++i) {
        names.push_back(stage->parameter_name(i));
        if (names.back() != name) continue;
        const Tensor& value = stage->parameter(i);
        return std::vector<float>(value.f32(), value.f32() + value.elements());
      }
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no parameter \"", name, "\"; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace

absl::Status CheckSupported(const partition::Plan& plan) {
  for (schedule::Rank rank(0); rank.value() < plan.num_ranks(); ++rank) {
    if (plan.replicas_of(rank) == 1) continue;
    return absl::UnimplementedError(
        absl::StrCat("the plan gives rank ", rank.value(), " ", plan.replicas_of(rank),
                     " replicas, but a rank trains on one device so far: plan with 1 replica"));
  }
  if (!plan.recomputed.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("the plan recomputes layer ", plan.recomputed.front(),
                     ", but layers cannot be recomputed so far: plan without recomputation"));
  }
  if (!plan.order.empty()) {
    return absl::UnimplementedError(
        "the plan orders the layers anew, as those of a graph, but a model is a chain that is cut "
        "in its own order: plan from a profile of the model");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Model& model,
                                                         const partition::Plan& plan,
                                                         const TrainerOptions& options) {
  auto trainer = std::make_unique<PipelineTrainer>(model, plan, options);
  RETURN_IF_ERROR(trainer->Initialize());
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace stagecoach::engine
