#include "engine/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using kernels::Float32;
using schedule::Action;
using schedule::BlockKind;
using schedule::Op;

// Adds the time of a scope to a counter.
class ScopedTimer {
 public:
  explicit ScopedTimer(int64_t& ns) : ns_(ns), start_(std::chrono::steady_clock::now()) {}
  ~ScopedTimer() {
    ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                                start_)
               .count();
  }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  int64_t& ns_;
  const std::chrono::steady_clock::time_point start_;
};

StageId Next(StageId stage) { return StageId(stage.value() + 1); }
StageId Previous(StageId stage) { return StageId(stage.value() - 1); }

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
  // To the arena, an area of no bytes would be in the way of the one that starts at its place.
  const auto claim = [&](int64_t offset, int64_t area_bytes) -> absl::StatusOr<std::byte*> {
    if (area_bytes == 0) return nullptr;
    return executor->arena_.Claim(offset, area_bytes);
  };
  ASSIGN_OR_RETURN(std::byte * resident, claim(0, training.resident_bytes));
  ASSIGN_OR_RETURN(executor->workspace_, claim(training.resident_bytes, training.workspace_bytes));
  for (const std::unique_ptr<Stage>& stage : executor->stages_) {
    stage->Place(resident, options.seed);
    const schedule::StageMemory& memory = stage->memory();
    for (int64_t part : {memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes,
                         memory.other_resident_bytes}) {
      resident += schedule::AlignBlock(part);
    }
  }
  executor->counters_.peak_bytes = executor->arena_.peak_bytes();
  return executor;
}

Executor::Executor(const Options& options, kernels::Arena arena,
                   std::vector<std::unique_ptr<Stage>> stages, std::vector<int> first_parameter)
    : options_(options),
      arena_(std::move(arena)),
      stages_(std::move(stages)),
      first_parameter_(std::move(first_parameter)) {
  const auto bind = [&](const Program& program) {
    const int64_t base = program.memory.resident_bytes + program.memory.workspace_bytes;
    return std::unique_ptr<Bound>(
        new Bound{program.schedule, BlockTable(arena_, base, program.memory, *program.schedule)});
  };
  training_ = bind(options_.training);
  evaluation_ = bind(options_.evaluation);
  const auto num_stages = static_cast<size_t>(options_.training.schedule->num_stages());
  stage_by_id_.resize(num_stages, nullptr);
  for (const std::unique_ptr<Stage>& stage : stages_) {
    stage_by_id_[static_cast<size_t>(stage->options().id.value())] = stage.get();
  }
  const auto micro_batches = static_cast<size_t>(options_.training.schedule->num_micro_batches);
  receive_tickets_.resize(2 * num_stages * micro_batches);
  send_tickets_.resize(2 * num_stages);
  const int ranks = options_.training.schedule->num_ranks();
  own_norms_.resize(static_cast<size_t>(options_.total_parameters));
  all_norms_.resize(own_norms_.size() * static_cast<size_t>(ranks));
}

absl::Status Executor::Train(const Batch& batch, const TrainStep& step) {
  return Run(*training_, batch, &step);
}

absl::Status Executor::Evaluate(const Batch& batch) { return Run(*evaluation_, batch, nullptr); }

absl::Status Executor::Run(Bound& bound, const Batch& batch, const TrainStep* step) {
  const Rank rank = options_.transport->rank();
  const std::vector<Action>& actions = bound.schedule->actions[static_cast<size_t>(rank.value())];
  bound.blocks.Restart();
  stashed_ = 0;
  norm_is_known_ = false;
  for (int position = 0; position < static_cast<int>(actions.size()); ++position) {
    position_.store(position, std::memory_order_relaxed);
    const Action& action = actions[static_cast<size_t>(position)];
    absl::Status status = bound.blocks.Begin(position);
    if (status.ok()) status = Perform(bound, action, batch, step);
    // The list ends when its last sends have been taken: their blocks end with it.
    if (status.ok() && position + 1 == static_cast<int>(actions.size())) status = AwaitSends();
    if (status.ok()) status = bound.blocks.End(position);
    if (!status.ok()) {
      return base::Annotate(status, absl::StrCat("rank ", rank.value(), ", ", ToString(action)));
    }
  }
  counters_.peak_bytes = arena_.peak_bytes();
  return absl::OkStatus();
}

absl::Status Executor::Perform(Bound& bound, const Action& action, const Batch& batch,
                               const TrainStep* step) {
  switch (action.op) {
    case Op::kForward:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
    case Op::kBackward: {
      RETURN_IF_ERROR(AwaitInputs(bound, action));
      ScopedTimer timer(counters_.compute_ns);
      return Compute(bound, action, batch, step);
    }
    case Op::kSendActivation:
    case Op::kSendGradient:
      return Send(bound, action);
    case Op::kReceiveActivation:
    case Op::kReceiveGradient:
      return Receive(bound, action);
    case Op::kStep:
      return Step(action, *step);
  }
  return absl::InternalError("unknown operation");
}

absl::Status Executor::Compute(Bound& bound, const Action& action, const Batch& batch,
                               const TrainStep* step) {
  Stage& own = stage(action.stage);
  const StageBlocks blocks = BlocksOf(bound, action.stage, action.micro_batch);
  // The last micro-batch completes the gradients.
  const bool updates = step != nullptr && step->clip_norm == 0.0F &&
                       action.micro_batch.value() + 1 == bound.schedule->num_micro_batches;
  const UpdateStep* const update = updates ? &step->update : nullptr;
  switch (action.op) {
    case Op::kForward:
      if (step != nullptr) counters_.peak_stashed = std::max(counters_.peak_stashed, ++stashed_);
      return own.Forward(blocks, batch, action.micro_batch);
    case Op::kBackwardInput:
      --stashed_;
      return own.BackwardInput(blocks);
    case Op::kBackwardWeight:
      return own.BackwardWeight(blocks, action.micro_batch, update);
    default:
      --stashed_;
      return own.Backward(blocks, action.micro_batch, update);
  }
}

bool Executor::IsHere(const Bound& bound, StageId id) const {
  return bound.schedule->rank_of(id) == options_.transport->rank();
}

StageBlocks Executor::BlocksOf(const Bound& bound, StageId id, MicroBatch micro_batch) const {
  const auto find = [&](BlockKind kind, StageId of) {
    return bound.blocks.Find(kind, of, micro_batch);
  };
  const schedule::Schedule& schedule = *bound.schedule;
  StageBlocks blocks;
  // Between two stages of this rank there is one activation and one gradient, which both use in
  // place.
  const bool previous_here = !schedule.is_first(id) && IsHere(bound, Previous(id));
  const bool next_here = !schedule.is_last(id) && IsHere(bound, Next(id));
  blocks.input =
      previous_here ? find(BlockKind::kOutput, Previous(id)) : find(BlockKind::kInput, id);
  blocks.output = find(BlockKind::kOutput, id);
  blocks.stash = find(BlockKind::kStash, id);
  blocks.weight_stash = find(BlockKind::kWeightStash, id);
  blocks.gradient_stash = find(BlockKind::kGradientStash, id);
  blocks.output_gradient =
      next_here ? find(BlockKind::kInputGradient, Next(id)) : find(BlockKind::kOutputGradient, id);
  blocks.input_gradient = find(BlockKind::kInputGradient, id);
  blocks.workspace = workspace_;
  return blocks;
}

Transport::Ticket& Executor::ReceiveTicket(Message::Kind kind, StageId stage,
                                           MicroBatch micro_batch) {
  const auto micro_batches = static_cast<size_t>(options_.training.schedule->num_micro_batches);
  return receive_tickets_[(static_cast<size_t>(stage.value()) * 2 + static_cast<size_t>(kind)) *
                              micro_batches +
                          static_cast<size_t>(micro_batch.value())];
}

Transport::Ticket& Executor::SendTicket(Message::Kind kind, StageId stage) {
  return send_tickets_[static_cast<size_t>(stage.value()) * 2 + static_cast<size_t>(kind)];
}

absl::Status Executor::Send(const Bound& bound, const Action& action) {
  const bool forward = action.op == Op::kSendActivation;
  const auto kind = forward ? Message::Kind::kActivation : Message::Kind::kGradient;
  Transport::Ticket& ticket = SendTicket(kind, action.stage);
  // One send per lane is outstanding: the memory plan counts on it.
  RETURN_IF_ERROR(options_.transport->Wait(ticket, base::Deadline::After(options_.deadline)));
  const schedule::StageMemory& memory = stage(action.stage).memory();
  std::byte* const data = bound.blocks.Find(
      forward ? BlockKind::kOutput : BlockKind::kInputGradient, action.stage, action.micro_batch);
  const int64_t bytes = forward ? memory.output_bytes : memory.input_gradient_bytes;
  const StageId boundary = forward ? action.stage : Previous(action.stage);
  ASSIGN_OR_RETURN(ticket, options_.transport->PostSend(PeerOf(*bound.schedule, action),
                                                        {kind, boundary, action.micro_batch},
                                                        Float32(data, Shape{bytes / 4})));
  return absl::OkStatus();
}

absl::Status Executor::Receive(const Bound& bound, const Action& action) {
  const bool forward = action.op == Op::kReceiveActivation;
  const auto kind = forward ? Message::Kind::kActivation : Message::Kind::kGradient;
  const schedule::StageMemory& memory = stage(action.stage).memory();
  std::byte* const data = bound.blocks.Find(
      forward ? BlockKind::kInput : BlockKind::kOutputGradient, action.stage, action.micro_batch);
  const int64_t bytes = forward ? memory.input_bytes : memory.output_gradient_bytes;
  const StageId boundary = forward ? Previous(action.stage) : action.stage;
  ASSIGN_OR_RETURN(ReceiveTicket(kind, action.stage, action.micro_batch),
                   options_.transport->PostReceive(PeerOf(*bound.schedule, action),
                                                   {kind, boundary, action.micro_batch},
                                                   Float32(data, Shape{bytes / 4})));
  return absl::OkStatus();
}

// Waits for what a compute action reads from another rank, if that is still on its way.
absl::Status Executor::AwaitInputs(const Bound& bound, const Action& action) {
  const bool forward = action.op == Op::kForward;
  if (action.op == Op::kBackwardWeight) return absl::OkStatus();
  const bool from_data = forward && bound.schedule->is_first(action.stage);
  const bool from_loss = !forward && bound.schedule->is_last(action.stage);
  if (from_data || from_loss) return absl::OkStatus();
  const auto kind = forward ? Message::Kind::kActivation : Message::Kind::kGradient;
  const Transport::Ticket ticket =
      std::exchange(ReceiveTicket(kind, action.stage, action.micro_batch), {});
  return options_.transport->Wait(ticket, base::Deadline::After(options_.deadline));
}

absl::Status Executor::AwaitSends() {
  for (Transport::Ticket& ticket : send_tickets_) {
    RETURN_IF_ERROR(options_.transport->Wait(std::exchange(ticket, {}),
                                             base::Deadline::After(options_.deadline)));
  }
  return absl::OkStatus();
}

absl::Status Executor::Step(const Action& action, const TrainStep& step) {
  if (step.clip_norm == 0.0F) return absl::OkStatus();  // each layer has been updated already
  if (!norm_is_known_) RETURN_IF_ERROR(GatherGradientNorm());
  UpdateStep update = step.update;
  if (gradient_norm_ > step.clip_norm) {
    update.gradient_scale *= static_cast<float>(step.clip_norm / gradient_norm_);
  }
  ScopedTimer timer(counters_.compute_ns);
  return stage(action.stage).Update(update);
}

// Sums the squares of all gradients in the order of the model's parameters, whatever rank has them:
// every rank contributes its own, and 0 for the others', so that the sum over ranks is exact.
absl::Status Executor::GatherGradientNorm() {
  std::fill(own_norms_.begin(), own_norms_.end(), 0.0);
  {
    ScopedTimer timer(counters_.compute_ns);
    for (size_t i = 0; i < stages_.size(); ++i) {
      RETURN_IF_ERROR(stages_[i]->SquaredNorms(
          absl::MakeSpan(own_norms_)
              .subspan(static_cast<size_t>(first_parameter_[i]),
                       static_cast<size_t>(stages_[i]->num_parameters()))));
    }
  }
  RETURN_IF_ERROR(options_.transport->AllGather(own_norms_, absl::MakeSpan(all_norms_),
                                                base::Deadline::After(options_.deadline)));
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
