#include "engine/run/executor.h"

#include <algorithm>
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
using Clock = std::chrono::steady_clock;

int64_t Nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    const Options& options, std::vector<std::unique_ptr<Stage>> stages) {
  const schedule::MemoryPlan& training = options.training.memory;
  const schedule::MemoryPlan& evaluation = options.evaluation.memory;
  STAGECOACH_CHECK(training.resident_bytes == evaluation.resident_bytes &&
                       training.workspace_bytes == evaluation.workspace_bytes,
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
    RETURN_IF_ERROR(stage->Place(resident, options_.seed));
    const schedule::StageMemory& memory = stage->memory();
    for (int64_t part : {memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes,
                         memory.other_resident_bytes}) {
      resident += schedule::AlignBlock(part);
    }
    stage_by_id[static_cast<size_t>(stage->options().id.value())] = stage.get();
  }
  const auto bind = [&](const Work& work) {
    return Bind({.schedule = *work.schedule,
                 .rank = options_.transport->rank(),
                 .memory = work.memory,
                 .dynamic = dynamic,
                 .workspace = workspace,
                 .stages = stage_by_id},
                dynamic_offset);
  };
  ASSIGN_OR_RETURN(training_, bind(options_.training));
  ASSIGN_OR_RETURN(evaluation_, bind(options_.evaluation));
  tickets_.resize(
      std::max(training_->program.instructions.size(), evaluation_->program.instructions.size()));
  ASSIGN_OR_RETURN(timeline_, options_.device->CreateTimeline(AllNormsSlot() + 1));
  ASSIGN_OR_RETURN(
      sample_numbers_,
      SampleNumberTable::Create(*options_.device, options_.training.schedule->num_micro_batches,
                                stages_.front()->options().micro_batch_rows));
  if (options_.clip_norm > 0.0F) {
    ASSIGN_OR_RETURN(norm_, GradientNorm::Create(*options_.device, options_.transport->ranks(),
                                                 *options_.parameters, options_.clip_norm));
  }
  for (const std::unique_ptr<Stage>& stage : stages_) {
    if (stage->options().is_last) loss_stage_ = stage.get();
  }
  if (options_.shares_results) {
    ASSIGN_OR_RETURN(
        shared_results_,
        SharedResults::Create(*options_.device, *options_.training.schedule, loss_stage_));
  }
  if (!options_.device->memory_is_host()) RETURN_IF_ERROR(WarmUp());
  counters_.peak_bytes = arena_.peak_bytes();
  return absl::OkStatus();
}

absl::Status Executor::WarmUp() {
  const Batch nothing;
  for (Bound* const bound : {training_.get(), evaluation_.get()}) {
    const Run run = {.bound = *bound, .batch = nothing, .step = nullptr, .timed = {}};
    const auto actions = static_cast<int>(bound->program.instructions.size());
    for (int round = 0; round < 2; ++round) {
      for (int position = 0; position < actions; ++position) {
        const Op op = bound->program.instructions[static_cast<size_t>(position)].action.op;
        if (!schedule::IsCompute(op)) continue;
        const absl::Status status = Issue(run, position);
        if (!status.ok()) return At(run, position, status);
      }
    }
  }
  if (norm_.has_value()) {
    for (const std::unique_ptr<Stage>& stage : stages_) {
      RETURN_IF_ERROR(stage->SquaredNorms(norm_->Squares(stage->parameters())));
    }
    RETURN_IF_ERROR(norm_->CombineAlone());
  }
  return options_.device->stream().Finish(base::Deadline::After(options_.deadline),
                                          [] { return absl::OkStatus(); });
}

absl::StatusOr<std::unique_ptr<Executor::Bound>> Executor::Bind(const ProgramInputs& inputs,
                                                                int64_t dynamic_offset) {
  std::unique_ptr<Bound> bound(
      new Bound{Compile(inputs), BlockTable(arena_, dynamic_offset, inputs.memory), {}});
  for (const Instruction& instruction : bound->program.instructions) {
    std::unique_ptr<kernels::Recording>& recording = bound->recordings.emplace_back();
    if (!schedule::IsCompute(instruction.action.op)) continue;
    ASSIGN_OR_RETURN(recording, options_.device->CreateRecording());
  }
  return bound;
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
  const auto actions = static_cast<int>(run.bound.program.instructions.size());
  options_.transport->Restart();
  run.bound.blocks.Restart();
  norm_position_ = -1;
  stashed_ = 0;
  RETURN_IF_ERROR(options_.device->stream().Report(-1));
  RETURN_IF_ERROR(sample_numbers_->Set(run.batch));
  for (int position = 0; position < actions; ++position) {
    const absl::Status status = PerformAt(run, position);
    if (!status.ok()) return At(run, position, status);
  }
  const absl::Status status = Finish(run);
  if (!status.ok()) return At(run, FirstNotDone(run), status);
  RETURN_IF_ERROR(ReadTimes(run));
  counters_.peak_bytes = arena_.peak_bytes();
  counters_.peak_stash_bytes =
      std::max(counters_.peak_stash_bytes, run.bound.blocks.peak_stash_bytes());
  return absl::OkStatus();
}

// The first action with work for the device that it has not done: transfers only wait, and a
// transfer that never happens holds up the computation after it.
int Executor::FirstNotDone(const Run& run) const {
  const std::vector<Instruction>& instructions = run.bound.program.instructions;
  const auto last = static_cast<int>(instructions.size()) - 1;
  int position = std::min(options_.device->stream().reported() + 1, last);
  while (position < last && !instructions[static_cast<size_t>(position)].works) ++position;
  return position;
}

absl::Status Executor::At(const Run& run, int position, const absl::Status& status) const {
  const Action& action = run.bound.program.instructions[static_cast<size_t>(position)].action;
  return base::Annotate(
      status, absl::StrCat("rank ", options_.transport->rank().value(), ", ", ToString(action)));
}

absl::Status Executor::PerformAt(const Run& run, int position) {
  const auto index = static_cast<size_t>(position);
  const Program& program = run.bound.program;
  RETURN_IF_ERROR(run.bound.blocks.Begin(position));
  RETURN_IF_ERROR(Mark(SlotOf(position, Moment::kReached)));
  RETURN_IF_ERROR(Perform(run, position));
  if (index + 1 == program.instructions.size()) {
    // The list ends when its last sends have been taken: their blocks end with it.
    RETURN_IF_ERROR(options_.transport->Flush());
    for (const int32_t send : program.last_sends) RETURN_IF_ERROR(Await(send));
  }
  RETURN_IF_ERROR(run.bound.blocks.End(position));
  if (!run.timed.empty()) {
    const Instruction& instruction = program.instructions[index];
    run.timed[index].bytes =
        schedule::IsTransfer(instruction.action.op)  ? instruction.tensor.bytes()
        : schedule::IsCompute(instruction.action.op) ? run.bound.blocks.stash_bytes()
                                                     : 0;
  }
  return absl::OkStatus();
}

absl::Status Executor::Perform(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  switch (instruction.action.op) {
    case Op::kForward:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
    case Op::kBackward:
      return Compute(run, position);
    case Op::kSendActivation:
    case Op::kSendGradient:
    case Op::kReceiveActivation:
    case Op::kReceiveGradient:
      return Transfer(run, position);
    case Op::kUnshard:
    case Op::kReshard:
    case Op::kReduceGradients:
      return absl::OkStatus();
    case Op::kStep:
      return Step(run, position);
  }
  return absl::InternalError("unknown operation");
}

absl::Status Executor::Compute(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  kernels::Stream& stream = options_.device->stream();
  RETURN_IF_ERROR(options_.transport->Flush());
  RETURN_IF_ERROR(KeepUp(instruction));
  if (instruction.awaits != Instruction::kNothing) RETURN_IF_ERROR(Await(instruction.awaits));
  for (const int32_t block : instruction.stashes) {
    if (block == Instruction::kNothing) break;
    run.bound.blocks.Stash(block);
  }
  RETURN_IF_ERROR(Mark(SlotOf(position, Moment::kStart)));
  stream.BeginRange(instruction.name.c_str());
  const absl::Status status = Issue(run, position);
  stream.EndRange();
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(Mark(SlotOf(position, Moment::kEnd)));
  return stream.Report(position);
}

absl::Status Executor::Issue(const Run& run, int position) {
  const auto index = static_cast<size_t>(position);
  const Instruction& instruction = run.bound.program.instructions[index];
  kernels::Recording& recording = *run.bound.recordings[index];
  Stage& stage = *instruction.stage;
  const bool updates =
      instruction.completes_gradients && run.step != nullptr && stage.options().updates_in_backward;
  const UpdateStep* const update = updates ? &run.step->update : nullptr;
  const StageBlocks& blocks = instruction.blocks;
  const MicroBatch micro_batch = instruction.action.micro_batch;
  const CallContext call = {.is_training = &run.bound == training_.get(),
                            .numbers = sample_numbers_->of(micro_batch)};
  switch (instruction.action.op) {
    case Op::kForward:
      if (run.step != nullptr) {
        counters_.peak_stashed = std::max(counters_.peak_stashed, ++stashed_);
      }
      return stage.Forward(blocks, call, run.batch, micro_batch, recording);
    case Op::kBackwardInput:
      --stashed_;
      return stage.BackwardInput(blocks, call, recording);
    case Op::kBackwardWeight:
      return stage.BackwardWeight(blocks, call, micro_batch, update, recording);
    default:
      --stashed_;
      return stage.Backward(blocks, call, micro_batch, update, recording);
  }
}

absl::Status Executor::Transfer(const Run& run, int position) {
  const auto index = static_cast<size_t>(position);
  const Instruction& instruction = run.bound.program.instructions[index];
  const bool sends = schedule::IsSend(instruction.action.op);
  // One send per lane is outstanding: the memory plan counts on it.
  if (instruction.awaits != Instruction::kNothing) RETURN_IF_ERROR(Await(instruction.awaits));
  RETURN_IF_ERROR(Mark(SlotOf(position, Moment::kStart)));
  Transport& transport = *options_.transport;
  ASSIGN_OR_RETURN(
      tickets_[index],
      sends ? transport.PostSend(instruction.peer, instruction.message, instruction.tensor)
            : transport.PostReceive(instruction.peer, instruction.message, instruction.tensor));
  return absl::OkStatus();
}

// Orders the work that follows after a transfer that was posted in this run.
absl::Status Executor::Await(int32_t transfer) {
  return options_.transport->Wait(tickets_[static_cast<size_t>(transfer)],
                                  base::Deadline::After(options_.deadline));
}

absl::Status Executor::Step(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  if (!instruction.works) return absl::OkStatus();
  RETURN_IF_ERROR(options_.transport->Flush());
  RETURN_IF_ERROR(KeepUp(instruction));
  RETURN_IF_ERROR(Mark(SlotOf(position, Moment::kStart)));
  UpdateStep update = run.step->update;
  if (norm_.has_value()) {
    if (norm_position_ < 0) {
      norm_position_ = position;
      RETURN_IF_ERROR(CombineNorms());
    }
    update.gradient_scale = norm_->scale();
  }
  RETURN_IF_ERROR(instruction.stage->Update(update));
  RETURN_IF_ERROR(Mark(SlotOf(position, Moment::kEnd)));
  return options_.device->stream().Report(position);
}

absl::Status Executor::CombineNorms() {
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RETURN_IF_ERROR(stage->SquaredNorms(norm_->Squares(stage->parameters())));
  }
  RETURN_IF_ERROR(Mark(OwnNormSlot()));
  RETURN_IF_ERROR(norm_->Combine(*options_.transport, base::Deadline::After(options_.deadline)));
  return Mark(AllNormsSlot());
}

absl::Status Executor::Finish(const Run& run) {
  if (shared_results_.has_value()) {
    RETURN_IF_ERROR(shared_results_->Exchange(*options_.transport, options_.deadline));
  }
  if (loss_stage_ != nullptr) RETURN_IF_ERROR(loss_stage_->FetchResults());
  if (run.step != nullptr && norm_.has_value()) RETURN_IF_ERROR(norm_->Fetch());
  const Batch next = run.step == nullptr ? Batch{} : run.step->next;
  for (const std::unique_ptr<Stage>& stage : stages_) stage->PrepareNext(next);
  return Patiently([&](absl::FunctionRef<absl::Status()> poll) {
    return options_.device->stream().Finish(base::Deadline::Never(), poll);
  });
}

absl::Status Executor::KeepUp(const Instruction& instruction) {
  kernels::Stream& stream = options_.device->stream();
  const int32_t position = instruction.keeps_up_with;
  if (position == Instruction::kNothing || stream.reported() >= position) return absl::OkStatus();
  return Patiently(
      [&](absl::FunctionRef<absl::Status()> poll) { return stream.WaitForReport(position, poll); });
}

absl::Status Executor::Patiently(
    absl::FunctionRef<absl::Status(absl::FunctionRef<absl::Status()> poll)> wait) {
  const kernels::Stream& stream = options_.device->stream();
  int32_t done = stream.reported();
  base::Deadline deadline = base::Deadline::After(options_.deadline);
  return wait([&]() -> absl::Status {
    RETURN_IF_ERROR(options_.transport->Poll());
    if (const int32_t now = stream.reported(); now != done) {
      done = now;
      deadline = base::Deadline::After(options_.deadline);
    }
    if (options_.transport->ranks() == 1 || !deadline.Expired()) return absl::OkStatus();
    return absl::DeadlineExceededError("timed out waiting for other ranks");
  });
}

LossResult Executor::Result(MicroBatch micro_batch) const {
  if (loss_stage_ != nullptr) return loss_stage_->Result(micro_batch);
  STAGECOACH_CHECK(shared_results_.has_value(), "the loss is on another rank");
  return shared_results_->Received(micro_batch);
}

absl::Status Executor::ReadTimes(const Run& run) {
  const std::vector<Instruction>& instructions = run.bound.program.instructions;
  for (size_t index = 0; index < instructions.size(); ++index) {
    const bool works = instructions[index].works;
    if (!works && run.timed.empty()) continue;
    ASSIGN_OR_RETURN(TimedAction timed, TimesOf(run, static_cast<int>(index)));
    if (works) counters_.compute_ns += timed.end_ns - timed.start_ns;
    if (run.timed.empty()) continue;
    timed.bytes = run.timed[index].bytes;
    run.timed[index] = timed;
  }
  return absl::OkStatus();
}

absl::StatusOr<TimedAction> Executor::TimesOf(const Run& run, int position) const {
  const auto index = static_cast<size_t>(position);
  const Instruction& instruction = run.bound.program.instructions[index];
  const Clock::time_point zero = run.step == nullptr ? Clock::time_point() : run.step->start;
  const auto at = [&](Moment moment) { return timeline_->At(SlotOf(position, moment)); };
  ASSIGN_OR_RETURN(Clock::time_point reached, at(Moment::kReached));
  reached = std::max(reached, zero);
  Clock::time_point start = reached;
  Clock::time_point end = reached;
  if (instruction.works) {
    ASSIGN_OR_RETURN(start, at(Moment::kStart));
    ASSIGN_OR_RETURN(end, at(Moment::kEnd));
    if (position == norm_position_) {
      // The wait for other ranks is in the middle of the step; it is reported as if it came first.
      ASSIGN_OR_RETURN(const Clock::time_point own_part_done, timeline_->At(OwnNormSlot()));
      ASSIGN_OR_RETURN(const Clock::time_point all_known, timeline_->At(AllNormsSlot()));
      start += all_known - own_part_done;
    }
  } else if (schedule::IsTransfer(instruction.action.op)) {
    ASSIGN_OR_RETURN(start, at(Moment::kStart));
    ASSIGN_OR_RETURN(end, options_.transport->DeliveredAt(tickets_[index]));
  }
  // Two devices' clocks agree to within some ten microseconds (Timeline::At), no more: what one saw
  // delivered may seem to be before the other reached it.
  start = std::max(start, reached);
  end = std::max(end, start);
  return TimedAction{.action = instruction.action,
                     .reached_ns = Nanoseconds(reached - zero),
                     .start_ns = Nanoseconds(start - zero),
                     .end_ns = Nanoseconds(end - zero)};
}

}  // namespace stagecoach::engine
