// One-time work of an executor: the checks, the memory, the programs, and the warm-up.

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/runtime/executor.h"

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::Op;

// Checks whether the schedule, which is validated, has the collectives of a run and no others.
absl::Status CheckCollectives(const schedule::Schedule& schedule, bool ties, bool exchanges_norms,
                              bool shares_results) {
  const std::vector<Action>& list = schedule.list_of(Rank(0));  // all ranks take part in a
                                                                // collective
  const auto has = [&](Op op) {
    return std::any_of(list.begin(), list.end(),
                       [op](const Action& action) { return action.op == op; });
  };
  if (has(Op::kSumTies) != ties) {
    return absl::FailedPreconditionError(
        ties ? "the schedule has no TIES, but layers of the model share parameters"
             : "the schedule has a TIES, but no layers of the model share parameters: remove it");
  }
  if (has(Op::kExchangeNorms) != exchanges_norms) {
    return absl::FailedPreconditionError(
        exchanges_norms
            ? "the schedule has no NORM, but gradients are clipped or checked"
            : "the schedule has a NORM, but gradients are not clipped: remove it, or clip them");
  }
  if (has(Op::kShareResults) != shares_results) {
    return absl::FailedPreconditionError(
        shares_results ? "the schedule has no RESULTS, but every rank is a process"
                       : "the schedule has a RESULTS, but the ranks are of one process: remove it");
  }
  return absl::OkStatus();
}

// Returns whether RESULTS comes between everything that updates take from other ranks and the
// updates. A user's schedule may have it elsewhere.
bool HasResultsBeforeSteps(const schedule::Schedule& schedule) {
  return std::all_of(
      schedule.actions.begin(), schedule.actions.end(), [](const std::vector<Action>& list) {
        const auto has = [](auto begin, auto end, auto is) {
          return std::any_of(begin, end, [&](const Action& action) { return is(action.op); });
        };
        const auto results = std::find_if(list.begin(), list.end(), [](const Action& action) {
          return action.op == Op::kShareResults;
        });
        return results != list.end() &&
               !has(list.begin(), results, [](Op op) { return op == Op::kStep; }) &&
               !has(results, list.end(), schedule::TakesGradients);
      });
}

FlightAction RingActionOf(const Program& program, const Instruction& instruction, bool reduces) {
  const Op op = instruction.action.op;
  FlightAction recorded = {.action = instruction.action, .peer = instruction.peer};
  if (schedule::IsCollective(op)) recorded.awaited = Awaited::kAll;
  if (op == Op::kStep && instruction.works && reduces) recorded.awaited = Awaited::kReplicas;
  if (instruction.awaits == Instruction::kNothing || schedule::MovesStash(op)) return recorded;
  recorded.awaited = schedule::IsCompute(op) ? Awaited::kMessage : Awaited::kTaken;
  recorded.peer = program.instructions[static_cast<size_t>(instruction.awaits)].peer;
  return recorded;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    const Options& options, std::vector<std::unique_ptr<Stage>> stages) {
  const schedule::CollectiveMemory& collectives = options.collectives;
  const bool ties = collectives.ties > 0;
  const bool exchanges_norms = collectives.norm_bytes > 0;
  const bool shares_results = collectives.result_bytes > 0;
  const bool trains = options.training.schedule != nullptr;
  if (trains) {
    RETURN_IF_ERROR(
        CheckCollectives(*options.training.schedule, ties, exchanges_norms, shares_results));
  }
  RETURN_IF_ERROR(CheckCollectives(*options.evaluation.schedule, false, false, shares_results));
  const schedule::MemoryPlan& training = options.training.memory;
  const schedule::MemoryPlan& evaluation = options.evaluation.memory;
  STAGECOACH_CHECK(!trains || (training.resident_bytes == evaluation.resident_bytes &&
                               training.workspace_bytes == evaluation.workspace_bytes),
                   "training and evaluation share the resident memory");
  const int64_t bytes = std::max(training.peak_bytes(), evaluation.peak_bytes());
  const size_t claims = std::max(training.blocks.size(), evaluation.blocks.size()) + 2;
  ASSIGN_OR_RETURN(kernels::Arena arena,
                   kernels::Arena::Create(*options.device, bytes, static_cast<int>(claims)));
  std::unique_ptr<Executor> executor(new Executor(options, std::move(arena), std::move(stages)));
  RETURN_IF_ERROR(executor->PlaceAll());
  return executor;
}

Executor::Executor(const Options& options, kernels::Arena arena,
                   std::vector<std::unique_ptr<Stage>> stages)
    : options_(options), arena_(std::move(arena)), stages_(std::move(stages)) {}

absl::Status Executor::PlaceAll() {
  // An area of no bytes would block the one that starts at its place in the arena.
  const auto claim = [this](int64_t offset, int64_t bytes) -> absl::StatusOr<std::byte*> {
    if (bytes == 0) return nullptr;
    return arena_.Claim(offset, bytes);
  };
  const schedule::MemoryPlan& plan = options_.evaluation.memory;
  const int64_t dynamic_offset = plan.resident_bytes + plan.workspace_bytes;
  ASSIGN_OR_RETURN(std::byte * resident, claim(0, plan.resident_bytes));
  ASSIGN_OR_RETURN(std::byte* const workspace, claim(plan.resident_bytes, plan.workspace_bytes));
  // Blocks are claimed one by one later; their place is known now.
  ASSIGN_OR_RETURN(std::byte* const dynamic, arena_.Claim(dynamic_offset, 0));
  RETURN_IF_ERROR(arena_.Release(dynamic_offset));

  RETURN_IF_ERROR(PrepareHostMemory());
  std::byte* host = host_memory_.data();
  std::vector<Stage*> stage_by_id(static_cast<size_t>(options_.evaluation.schedule->num_stages()));
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RETURN_IF_ERROR(stage->Place(resident, host, options_.seed, options_.draws_parameters));
    const schedule::StageMemory& memory = stage->memory();
    for (int64_t part : {memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes,
                         memory.other_resident_bytes}) {
      resident += schedule::AlignBlock(part);
    }
    host += schedule::AlignBlock(memory.host_resident_bytes);
    stage_by_id[static_cast<size_t>(stage->options().id.value())] = stage.get();
  }
  counters_.host_bytes = host - host_memory_.data();
  size_t most_instructions = 0;
  int most_slots = 0;
  const auto bind = [&](const Work& work, std::unique_ptr<Bound>& bound) -> absl::Status {
    ASSIGN_OR_RETURN(bound, Bind({.schedule = *work.schedule,
                                  .rank = options_.transport->rank(),
                                  .memory = work.memory,
                                  .dynamic = dynamic,
                                  .workspace = workspace,
                                  .host = host,
                                  .stages = stage_by_id},
                                 dynamic_offset));
    most_instructions = std::max(most_instructions, bound->program.instructions.size());
    most_slots = std::max(most_slots, bound->program.num_slots);
    return absl::OkStatus();
  };
  if (options_.training.schedule != nullptr) RETURN_IF_ERROR(bind(options_.training, training_));
  RETURN_IF_ERROR(bind(options_.evaluation, evaluation_));
  tickets_.resize(most_instructions);
  if (training_ != nullptr && training_->program.num_copy_slots > 0) {
    ASSIGN_OR_RETURN(host_copies_,
                     options_.device->CreateHostCopies(training_->program.num_copy_slots));
  }
  ASSIGN_OR_RETURN(timeline_, options_.device->CreateTimeline(most_slots));
  for (const std::unique_ptr<Stage>& stage : stages_) {
    if (stage->options().is_last) loss_stage_ = stage.get();
  }
  ASSIGN_OR_RETURN(
      sample_numbers_,
      SampleNumberTable::Create(*options_.device, options_.evaluation.schedule->num_micro_batches,
                                stages_.front()->options().micro_batch_rows,
                                stages_.front()->options().cached_positions));
  if (!options_.ties.empty()) ties_.emplace(*options_.device, EndsOfTies(), workspace);
  RETURN_IF_ERROR(PlaceCollectives(resident));
  if (!options_.device->memory_is_host()) RETURN_IF_ERROR(WarmUp());
  counters_.peak_bytes = arena_.peak_bytes();
  return absl::OkStatus();
}

absl::Status Executor::PrepareHostMemory() {
  const schedule::MemoryPlan& plan = options_.training.memory;
  if (options_.training.schedule == nullptr || plan.host_bytes() == 0) return absl::OkStatus();
  absl::StatusOr<kernels::HostBuffer> memory = options_.device->AllocateHost(plan.host_bytes());
  if (!memory.ok()) {
    return base::Annotate(memory.status(), "host memory (--offload, --offload-optimizer)");
  }
  host_memory_ = *std::move(memory);
  return absl::OkStatus();
}

absl::Status Executor::PlaceCollectives(std::byte* resident) {
  const schedule::CollectiveMemory& memory = options_.collectives;
  const schedule::Schedule& schedule = *options_.evaluation.schedule;
  kernels::Device& device = *options_.device;
  if (memory.norm_bytes > 0) {
    ASSIGN_OR_RETURN(norm_,
                     GradientNorm::Create(device, resident, schedule.num_ranks(), options_.part,
                                          *options_.parameters, options_.clip_norm));
    resident += schedule::NormTableBytes(memory, schedule);
  }
  if (memory.result_bytes > 0) {
    ASSIGN_OR_RETURN(shared_results_,
                     SharedResults::Create({.device = &device,
                                            .beside = options_.beside,
                                            .replicas = options_.replicas,
                                            .deadline = options_.deadline,
                                            .schedule = &schedule,
                                            .loss_stage = loss_stage_,
                                            .table = resident,
                                            .before_steps = memory.results_before_steps}));
    resident += schedule::ResultTableBytes(memory, schedule, options_.transport->rank());
  }
  const StageOptions& stage = stages_.front()->options();
  if (memory.results_before_steps && stage.replication.shards_optimizer) {
    return absl::UnimplementedError(
        "RESULTS before STEPs, with an optimizer that is sharded: the REDUCEs that update would "
        "not wait for them");
  }
  waits_before_steps_ = memory.results_before_steps && options_.training.schedule != nullptr &&
                        HasResultsBeforeSteps(*options_.training.schedule) &&
                        !stage.updates_in_backward;
  const bool reduces = options_.replicas != nullptr && training_ != nullptr;
  return reduces ? CreateReduction(resident) : absl::OkStatus();
}

std::vector<TiedGradients::End> Executor::EndsOfTies() const {
  std::vector<TiedGradients::End> ends;
  const auto gradient_of = [&](ParameterId id) -> Tensor {
    for (const std::unique_ptr<Stage>& stage : stages_) {
      if (stage->has(id)) return stage->GradientOf(id);
    }
    return {};
  };
  for (const StagesOfTie& tie : options_.ties) {
    const Tensor first = gradient_of(tie.first), second = gradient_of(tie.second);
    if (first.empty() && second.empty()) continue;
    TiedGradients::End end = {.first_stage = tie.first_stage, .own = first, .other = second};
    if (first.empty() || second.empty()) {
      const StageId peer = first.empty() ? tie.first_stage : tie.second_stage;
      end.own = first.empty() ? second : first;
      end.other = {};
      end.peer = options_.evaluation.schedule->rank_of(peer);
    }
    ends.push_back(end);
  }
  return ends;
}

absl::Status Executor::CreateReduction(std::byte* received) {
  Reduction::Options options = {.device = options_.device,
                                .beside = options_.beside,
                                .replication = stages_.front()->options().replication,
                                .replicas = options_.replicas,
                                .deadline = options_.deadline,
                                .received = received,
                                .tasks = {}};
  shards_.resize(static_cast<size_t>(options_.training.schedule->num_stages()));
  for (const Instruction& instruction : training_->program.instructions) {
    const Op op = instruction.action.op;
    if (op != Op::kReduceGradients && op != Op::kStep) continue;
    const Stage& stage = *instruction.stage;
    const bool shards = stage.options().replication.shards_optimizer;
    std::unique_ptr<OptimizerShard>& shard =
        shards_[static_cast<size_t>(stage.options().id.value())];
    if (shards && shard == nullptr) {
      ASSIGN_OR_RETURN(shard, OptimizerShard::Create({.device = options_.beside,
                                                      .optimizer = stage.options().optimizer,
                                                      .parameters = stage.parameters(),
                                                      .tensors = stage.tensors(),
                                                      .gradients = stage.all_gradients(),
                                                      .states = stage.shard_states(),
                                                      .replication = stage.options().replication,
                                                      .replica = options_.replicas->rank().value(),
                                                      .part = options_.part}));
    }
    Reduction::Task task = {.op = op, .stage = stage.options().id};
    const bool updates = shards && options_.collectives.precede_updates() == (op == Op::kStep);
    if (op == Op::kReduceGradients) task.added = stage.all_gradients();
    if (updates) task.shard = shard.get();
    task.gathered = updates ? stage.all_values() : task.added;
    // Also for a stage without parameters, whose memory has no address.
    if (op == Op::kReduceGradients || (updates && instruction.works)) options.tasks.push_back(task);
  }
  ASSIGN_OR_RETURN(reduction_, Reduction::Create(std::move(options)));
  return absl::OkStatus();
}

std::vector<TrainedPiece> Executor::TrainedPieces() const {
  std::vector<TrainedPiece> all;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    const std::vector<TrainedPiece> own = stage->TrainedPieces();
    all.insert(all.end(), own.begin(), own.end());
  }
  for (const std::unique_ptr<OptimizerShard>& shard : shards_) {
    if (shard == nullptr) continue;
    all.insert(all.end(), shard->trained_pieces().begin(), shard->trained_pieces().end());
  }
  return all;
}

absl::Status Executor::PrepareOutputs() {
  if (loss_stage_ == nullptr || outputs_.bytes() > 0) return absl::OkStatus();
  const int64_t bytes = loss_stage_->options().micro_batches * Output(MicroBatch(0)).bytes();
  ASSIGN_OR_RETURN(outputs_, options_.device->AllocateHost(bytes));
  return loss_stage_->records_outputs() ? RecordOutputs({.wants_outputs = true}) : absl::OkStatus();
}

absl::Status Executor::PrepareChoice(int64_t ids) {
  if (loss_stage_ == nullptr || (chosen_.bytes() > 0 && choice_.classes == ids)) {
    return absl::OkStatus();
  }
  // Two more are chosen while recordings are made.
  const int64_t positions = loss_stage_->options().cached_positions + 2;
  ASSIGN_OR_RETURN(
      chosen_, options_.device->AllocateHost(positions * static_cast<int64_t>(sizeof(int32_t))));
  choice_ = {.classes = ids,
             .position = &sample_numbers_->rows_of(MicroBatch(0))->position,
             .chosen = chosen()};
  for (std::unique_ptr<kernels::Recording>& recording : evaluation_->choice_recordings) {
    if (recording == nullptr) continue;
    ASSIGN_OR_RETURN(recording, options_.device->CreateRecording());
  }
  const Batch padding = {.wants_choice = true};
  RETURN_IF_ERROR(sample_numbers_->Set(padding));
  return RecordOutputs(padding);
}

absl::Status Executor::RecordOutputs(const Batch& padding) {
  if (options_.device->memory_is_host()) return absl::OkStatus();
  RETURN_IF_ERROR(IssueTwice(*evaluation_, padding, [this](const Instruction& instruction) {
    return instruction.stage == loss_stage_;
  }));
  CountGraphs();
  return FinishAlone();
}

Tensor Executor::Output(MicroBatch micro_batch) const {
  STAGECOACH_CHECK(loss_stage_ != nullptr, "the last stage is on another rank");
  const StageOptions& stage = loss_stage_->options();
  Tensor output = {nullptr, options_.device->activation_type(),
                   options_.output.Batched(stage.output_rows)};
  output.data = outputs_.data() + micro_batch.value() * output.bytes();
  return output;
}

absl::Status Executor::WarmUp() {
  const Batch nothing;
  for (Bound* const bound : {training_.get(), evaluation_.get()}) {
    if (bound == nullptr) continue;
    RETURN_IF_ERROR(IssueTwice(*bound, nothing, [](const Instruction&) { return true; }));
  }
  CountGraphs();
  if (norm_.has_value()) {
    RETURN_IF_ERROR(SumOwnSquares());
    RETURN_IF_ERROR(norm_->Combine());
  }
  return FinishAlone();
}

absl::Status Executor::IssueTwice(Bound& bound, const Batch& padding,
                                  absl::FunctionRef<bool(const Instruction&)> is_wanted) {
  const Run run = {
      .bound = bound, .batch = padding, .step = nullptr, .is_measured = false, .timed = {}};
  const auto actions = static_cast<int>(bound.program.instructions.size());
  for (int round = 0; round < 2; ++round) {
    for (int position = 0; position < actions; ++position) {
      const Instruction& instruction = bound.program.instructions[static_cast<size_t>(position)];
      if (!schedule::IsCompute(instruction.action.op) || !is_wanted(instruction)) continue;
      const absl::Status status = Launch(run, position);
      if (!status.ok()) return At(run, position, status);
    }
  }
  return absl::OkStatus();
}

void Executor::CountGraphs() {
  counters_.graphs = 0;
  for (const Bound* const bound : {training_.get(), evaluation_.get()}) {
    if (bound == nullptr) continue;
    for (const auto* const recordings :
         {&bound->recordings, &bound->output_recordings, &bound->choice_recordings}) {
      counters_.graphs +=
          std::count_if(recordings->begin(), recordings->end(), [](const auto& recording) {
            return recording != nullptr && recording->form() == kernels::Recording::Form::kGraph;
          });
    }
  }
}

absl::StatusOr<std::unique_ptr<Executor::Bound>> Executor::Bind(const ProgramInputs& inputs,
                                                                int64_t dynamic_offset) {
  std::unique_ptr<Bound> bound(
      new Bound{Compile(inputs), BlockTable(arena_, dynamic_offset, inputs.memory)});
  bound->operations.resize(bound->program.instructions.size());
  bound->issued_after.resize(bound->program.instructions.size());
  for (const Instruction& instruction : bound->program.instructions) {
    bound->recorded.push_back(
        RingActionOf(bound->program, instruction, options_.replicas != nullptr));
    std::unique_ptr<kernels::Recording>& recording = bound->recordings.emplace_back();
    std::unique_ptr<kernels::Recording>& with_outputs = bound->output_recordings.emplace_back();
    std::unique_ptr<kernels::Recording>& with_choice = bound->choice_recordings.emplace_back();
    if (!schedule::IsCompute(instruction.action.op)) continue;
    ASSIGN_OR_RETURN(recording, options_.device->CreateRecording());
    if (instruction.action.op != Op::kForward || !instruction.stage->records_outputs()) continue;
    ASSIGN_OR_RETURN(with_outputs, options_.device->CreateRecording());
    ASSIGN_OR_RETURN(with_choice, options_.device->CreateRecording());
  }
  return bound;
}

}  // namespace stagecoach::engine
