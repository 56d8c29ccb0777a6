#include "engine/executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::TimedAction;

template <typename Duration>
int64_t Nanoseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    const Options& options, std::vector<std::unique_ptr<Stage>> stages,
    std::vector<int> first_parameter) {
  const schedule::MemoryPlan& training = options.training.memory;
  const schedule::MemoryPlan& evaluation = options.evaluation.memory;
  STAGECOACH_CHECK(training.resident_bytes == evaluation.resident_bytes &&
                       training.workspace_bytes == evaluation.workspace_bytes,
                   "training and evaluation share the resident memory");
  const int64_t bytes = std::max(training.peak_bytes(), evaluation.peak_bytes());
  const size_t claims = std::max(training.blocks.size(), evaluation.blocks.size()) + 2;
  ASSIGN_OR_RETURN(kernels::Arena arena,
                   kernels::Arena::Create(*options.device, bytes, static_cast<int>(claims)));
  std::unique_ptr<Executor> executor(
      new Executor(options, std::move(arena), std::move(stages), std::move(first_parameter)));
  RETURN_IF_ERROR(executor->PlaceAll());
  return executor;
}

Executor::Executor(const Options& options, kernels::Arena arena,
                   std::vector<std::unique_ptr<Stage>> stages, std::vector<int> first_parameter)
    : options_(options),
      arena_(std::move(arena)),
      stages_(std::move(stages)),
      first_parameter_(std::move(first_parameter)),
      own_norms_(static_cast<size_t>(options_.total_parameters)),
      all_norms_(own_norms_.size() * static_cast<size_t>(options_.training.schedule->num_ranks())) {
}

absl::Status Executor::PlaceAll() {
  // To the arena, an area of no bytes would be in the way of the one that starts at its place.
  const auto claim = [this](int64_t offset, int64_t bytes) -> absl::StatusOr<std::byte*> {
    if (bytes == 0) return nullptr;
    return arena_.Claim(offset, bytes);
  };
  const schedule::MemoryPlan& plan = options_.training.memory;
  const int64_t dynamic_offset = plan.resident_bytes + plan.workspace_bytes;
  ASSIGN_OR_RETURN(std::byte * resident, claim(0, plan.resident_bytes));
  ASSIGN_OR_RETURN(std::byte* const workspace, claim(plan.resident_bytes, plan.workspace_bytes));
  // Blocks are claimed one by one later; where they will be is known now.
  ASSIGN_OR_RETURN(std::byte* const dynamic, arena_.Claim(dynamic_offset, 0));
  RETURN_IF_ERROR(arena_.Release(dynamic_offset));

  std::vector<Stage*> stage_by_id(static_cast<size_t>(options_.training.schedule->num_stages()));
  for (const std::unique_ptr<Stage>& stage : stages_) {
    stage->Place(resident, options_.seed);
    const schedule::StageMemory& memory = stage->memory();
    for (int64_t part : {memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes,
                         memory.other_resident_bytes}) {
      resident += schedule::AlignBlock(part);
    }
    stage_by_id[static_cast<size_t>(stage->options().id.value())] = stage.get();
  }
  const auto bind = [&](const Work& work) {
    const ProgramInputs inputs = {.schedule = *work.schedule,
                                  .rank = options_.transport->rank(),
                                  .memory = work.memory,
                                  .dynamic = dynamic,
                                  .workspace = workspace,
                                  .stages = stage_by_id};
    return std::unique_ptr<Bound>(
        new Bound{Compile(inputs), BlockTable(arena_, dynamic_offset, work.memory)});
  };
  training_ = bind(options_.training);
  evaluation_ = bind(options_.evaluation);
  tickets_.resize(
      std::max(training_->program.instructions.size(), evaluation_->program.instructions.size()));
  counters_.peak_bytes = arena_.peak_bytes();
  return absl::OkStatus();
}

absl::Status Executor::Train(const Batch& batch, const TrainStep& step, schedule::Trace* trace) {
  const auto rank = static_cast<size_t>(options_.transport->rank().value());
  return PerformAll({.bound = *training_,
                     .batch = batch,
                     .step = &step,
                     .timed = trace == nullptr ? absl::Span<TimedAction>()
                                               : absl::MakeSpan(trace->actions[rank])});
}

absl::Status Executor::Evaluate(const Batch& batch) {
  return PerformAll({.bound = *evaluation_, .batch = batch, .step = nullptr, .timed = {}});
}

absl::Status Executor::PerformAll(const Run& run) {
  const std::vector<Instruction>& instructions = run.bound.program.instructions;
  run.bound.blocks.Restart();
  norm_is_known_ = false;
  stashed_ = 0;
  for (size_t position = 0; position < instructions.size(); ++position) {
    const absl::Status status = PerformAt(run, static_cast<int>(position));
    if (!status.ok()) {
      return base::Annotate(status, absl::StrCat("rank ", options_.transport->rank().value(), ", ",
                                                 ToString(instructions[position].action)));
    }
  }
  counters_.peak_bytes = arena_.peak_bytes();
  counters_.peak_stash_bytes =
      std::max(counters_.peak_stash_bytes, run.bound.blocks.peak_stash_bytes());
  return absl::OkStatus();
}

absl::Status Executor::PerformAt(const Run& run, int position) {
  const auto index = static_cast<size_t>(position);
  const Program& program = run.bound.program;
  const Instruction& instruction = program.instructions[index];
  const Op op = instruction.action.op;
  RETURN_IF_ERROR(run.bound.blocks.Begin(position));
  const Clock::time_point reached = Clock::now();
  Times times = {reached, reached};
  RETURN_IF_ERROR(Perform(run, position, times));
  if (!run.timed.empty()) {
    const Clock::time_point zero = run.step->start;
    run.timed[index] = {.action = instruction.action,
                        .reached_ns = Nanoseconds(reached - zero),
                        .start_ns = Nanoseconds(times.start - zero),
                        .end_ns = Nanoseconds(times.end - zero),
                        .bytes = schedule::IsTransfer(op) ? instruction.tensor.bytes() : 0};
  }
  if (index + 1 == program.instructions.size()) {
    // The list ends when its last sends have been taken: their blocks end with it.
    for (const int32_t send : program.last_sends) RETURN_IF_ERROR(Await(run, send));
  }
  RETURN_IF_ERROR(run.bound.blocks.End(position));
  if (!run.timed.empty() && schedule::IsCompute(op)) {
    run.timed[index].bytes = run.bound.blocks.stash_bytes();
  }
  return absl::OkStatus();
}

absl::Status Executor::Perform(const Run& run, int position, Times& times) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  switch (instruction.action.op) {
    case Op::kForward:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
    case Op::kBackward:
      return Compute(run, instruction, times);
    case Op::kSendActivation:
    case Op::kSendGradient:
    case Op::kReceiveActivation:
    case Op::kReceiveGradient:
      return Transfer(run, position, times);
    case Op::kUnshard:
    case Op::kReshard:
    case Op::kReduceGradients:
      return absl::OkStatus();
    case Op::kStep:
      return Step(*instruction.stage, *run.step, times);
  }
  return absl::InternalError("unknown operation");
}

absl::Status Executor::Compute(const Run& run, const Instruction& instruction, Times& times) {
  if (instruction.awaits != Instruction::kNothing) {
    RETURN_IF_ERROR(Await(run, instruction.awaits));
    times.start = Clock::now();
  }
  for (const int32_t block : instruction.stashes) {
    if (block == Instruction::kNothing) break;
    run.bound.blocks.Stash(block);
  }
  const bool updates =
      instruction.completes_gradients && run.step != nullptr && run.step->clip_norm == 0.0F;
  const UpdateStep* const update = updates ? &run.step->update : nullptr;
  const StageBlocks& blocks = instruction.blocks;
  const MicroBatch micro_batch = instruction.action.micro_batch;
  switch (instruction.action.op) {
    case Op::kForward:
      if (run.step != nullptr)
        counters_.peak_stashed = std::max(counters_.peak_stashed, ++stashed_);
      RETURN_IF_ERROR(instruction.stage->Forward(blocks, run.batch, micro_batch));
      break;
    case Op::kBackwardInput:
      --stashed_;
      RETURN_IF_ERROR(instruction.stage->BackwardInput(blocks));
      break;
    case Op::kBackwardWeight:
      RETURN_IF_ERROR(instruction.stage->BackwardWeight(blocks, micro_batch, update));
      break;
    default:
      --stashed_;
      RETURN_IF_ERROR(instruction.stage->Backward(blocks, micro_batch, update));
  }
  times.end = Clock::now();
  counters_.compute_ns += Nanoseconds(times.end - times.start);
  return absl::OkStatus();
}

absl::Status Executor::Transfer(const Run& run, int position, Times& times) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  const bool sends = schedule::IsSend(instruction.action.op);
  // One send per lane is outstanding: the memory plan counts on it.
  if (instruction.awaits != Instruction::kNothing) {
    RETURN_IF_ERROR(Await(run, instruction.awaits));
    times.start = Clock::now();
  }
  times.end = times.start;  // until it is awaited
  Transport& transport = *options_.transport;
  ASSIGN_OR_RETURN(
      tickets_[static_cast<size_t>(position)],
      sends ? transport.PostSend(instruction.peer, instruction.message, instruction.tensor)
            : transport.PostReceive(instruction.peer, instruction.message, instruction.tensor));
  return absl::OkStatus();
}

// Until a transfer that was posted in this run is done.
absl::Status Executor::Await(const Run& run, int32_t transfer) {
  const Transport::Ticket& ticket = tickets_[static_cast<size_t>(transfer)];
  Transport& transport = *options_.transport;
  RETURN_IF_ERROR(transport.Wait(ticket, base::Deadline::After(options_.deadline)));
  if (!run.timed.empty()) {
    run.timed[static_cast<size_t>(transfer)].end_ns =
        Nanoseconds(transport.DeliveredAt(ticket) - run.step->start);
  }
  return absl::OkStatus();
}

absl::Status Executor::Step(Stage& stage, const TrainStep& step, Times& times) {
  if (step.clip_norm == 0.0F) return absl::OkStatus();  // each layer has been updated already
  if (!norm_is_known_) RETURN_IF_ERROR(GatherGradientNorm(times));
  UpdateStep update = step.update;
  if (gradient_norm_ > step.clip_norm) {
    update.gradient_scale *= static_cast<float>(step.clip_norm / gradient_norm_);
  }
  RETURN_IF_ERROR(stage.Update(update));
  times.end = Clock::now();
  counters_.compute_ns += Nanoseconds(times.end - times.start);
  return absl::OkStatus();
}

// Sums the squares of all gradients in the order of the model's parameters, whatever rank has them:
// every rank contributes its own, and 0 for the others', so that the sum over ranks is exact.
absl::Status Executor::GatherGradientNorm(Times& times) {
  std::fill(own_norms_.begin(), own_norms_.end(), 0.0);
  for (size_t i = 0; i < stages_.size(); ++i) {
    RETURN_IF_ERROR(
        stages_[i]->SquaredNorms(absl::MakeSpan(own_norms_)
                                     .subspan(static_cast<size_t>(first_parameter_[i]),
                                              static_cast<size_t>(stages_[i]->num_parameters()))));
  }
  const Clock::time_point own_part_done = Clock::now();
  RETURN_IF_ERROR(options_.transport->AllGather(own_norms_, absl::MakeSpan(all_norms_),
                                                base::Deadline::After(options_.deadline)));
  // The wait for other ranks is in the middle of the step; it is reported as if it came first.
  times.start += Clock::now() - own_part_done;
  double sum = 0.0;
  for (size_t i = 0; i < own_norms_.size(); ++i) {
    double squared = 0.0;
    for (size_t at = i; at < all_norms_.size(); at += own_norms_.size()) squared += all_norms_[at];
    sum += squared;
  }
  gradient_norm_ = std::sqrt(sum);
  norm_is_known_ = true;
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
