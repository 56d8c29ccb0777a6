#include "schedule/memory/lifetimes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace stagecoach::schedule {
namespace {

// Returns, for each send in `list`, the position at which it completes: the next send on its lane,
// or the end.
std::vector<int32_t> SendCompletions(const std::vector<Action>& list, int num_stages) {
  const int32_t end = static_cast<int32_t>(list.size()) - 1;
  std::vector<int32_t> next_send(2 * static_cast<size_t>(num_stages), end);  // index: lane
  std::vector<int32_t> completion(list.size(), end);
  for (size_t i = list.size(); i-- > 0;) {
    if (!IsSend(list[i].op)) continue;
    const size_t lane = 2 * static_cast<size_t>(list[i].stage.value()) +
                        (list[i].op == Op::kSendActivation ? 0 : 1);
    completion[i] = std::exchange(next_send[lane], static_cast<int32_t>(i));
  }
  return completion;
}

// Returns true if the list has backward actions. If any rank has some, every rank with a stage
// does.
bool HasBackward(const std::vector<Action>& list) {
  return std::any_of(list.begin(), list.end(),
                     [](const Action& action) { return IsBackward(action.op); });
}

}  // namespace

Lifetimes::Lifetimes(const Schedule& schedule, Rank rank, const ActionTable& table,
                     absl::Span<const StageMemory> stages)
    : schedule_(schedule),
      table_(table),
      stages_(stages),
      trains_(HasBackward(schedule.list_of(rank))),
      completion_(SendCompletions(schedule.list_of(rank), schedule.num_stages())) {}

absl::Status Lifetimes::CheckLowered(StageId stage) const {
  std::vector<Op> needed = {Op::kForward};
  if (schedule_.receives_from_previous(stage)) needed.push_back(Op::kReceiveActivation);
  if (schedule_.sends_to_next(stage)) needed.push_back(Op::kSendActivation);
  if (trains_) {
    needed.insert(needed.end(), {Op::kBackwardInput, Op::kBackwardWeight});
    if (schedule_.sends_to_next(stage)) needed.push_back(Op::kReceiveGradient);
    if (schedule_.receives_from_previous(stage)) needed.push_back(Op::kSendGradient);
    if (table_.FindStep(stage) == ActionTable::kNowhere) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the schedule is not lowered: stage ", stage.value(), " has no STEP; call Lower first"));
    }
  }
  for (MicroBatch mb(0); mb.value() < schedule_.num_micro_batches; ++mb) {
    for (const Op op : needed) {
      if (table_.Find(op, stage, mb) != ActionTable::kNowhere) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the schedule is not lowered: ",
                       ToString(Action{.op = op, .stage = stage, .micro_batch = mb}),
                       " is missing; call Lower first"));
    }
    const auto has = [&](Op op) { return table_.Find(op, stage, mb) != ActionTable::kNowhere; };
    const int moves = int{has(Op::kOffload)} + int{has(Op::kRelease)} + int{has(Op::kFetch)};
    if (moves == 0 || moves == 3) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", stage.value(), ", micro-batch ", mb.value(),
                     ": OFFLOAD, RELEASE and FETCH belong together; call Validate first"));
  }
  return absl::OkStatus();
}

void Lifetimes::AddStage(StageId stage) {
  entries_.reserve(entries_.size() +
                   kNumBlockKinds * static_cast<size_t>(schedule_.num_micro_batches));
  const bool splits_backward = schedule_.SplitsBackward(stage);
  for (MicroBatch mb(0); mb.value() < schedule_.num_micro_batches; ++mb) {
    AddInput(stage, mb);
    AddOutput(stage, mb);
    if (!trains_) {
      AddUnreadStashes(stage, mb);
      continue;
    }
    AddStashes(stage, mb, splits_backward);
    AddGradients(stage, mb);
  }
}

int32_t Lifetimes::PositionOf(LastUse use, StageId stage, MicroBatch mb) const {
  if (!IsKept(use)) return table_.Find(Op::kForward, stage, mb);
  return table_.Find(use == LastUse::kBackwardInput ? Op::kBackwardInput : Op::kBackwardWeight,
                     stage, mb);
}

void Lifetimes::Add(BlockKind kind, StageId stage, MicroBatch mb, int64_t bytes, int32_t first,
                    int32_t last, int32_t stash_first) {
  if (bytes == 0) return;
  entries_.push_back({{kind, stage, mb, AlignBlock(bytes), 0, first, last}, stash_first});
}

void Lifetimes::AddInput(StageId stage, MicroBatch mb) {
  const StageMemory& memory = MemoryOf(stage);
  const bool received = schedule_.receives_from_previous(stage);
  if (!received && !schedule_.is_first(stage)) return;  // the previous stage's output
  const int32_t forward = table_.Find(Op::kForward, stage, mb);
  Add(BlockKind::kInput, stage, mb, memory.input_bytes,
      received ? table_.Find(Op::kReceiveActivation, stage, mb) : forward,
      PositionOf(memory.input_last_use, stage, mb),
      IsKept(memory.input_last_use) ? forward : kNever);
}

void Lifetimes::AddOutput(StageId stage, MicroBatch mb) {
  const StageMemory& memory = MemoryOf(stage);
  const int32_t forward = table_.Find(Op::kForward, stage, mb);
  int64_t bytes = memory.output_bytes;
  int32_t last = PositionOf(memory.output_last_use, stage, mb);
  int32_t stash_first = IsKept(memory.output_last_use) ? forward : kNever;
  if (schedule_.sends_to_next(stage)) {
    last = std::max(last, CompletionOf(Op::kSendActivation, stage, mb));
  } else if (!schedule_.is_last(stage)) {
    const StageId next(stage.value() + 1);
    const StageMemory& reader = MemoryOf(next);
    bytes = std::max(bytes, reader.input_bytes);
    last = std::max(last, PositionOf(reader.input_last_use, next, mb));
    if (stash_first == kNever && IsKept(reader.input_last_use)) {
      stash_first = table_.Find(Op::kForward, next, mb);
    }
  }
  Add(BlockKind::kOutput, stage, mb, bytes, forward, last, stash_first);
}

// Adds stashes that layers write even if nothing reads them.
void Lifetimes::AddUnreadStashes(StageId stage, MicroBatch mb) {
  const StageMemory& memory = MemoryOf(stage);
  const int32_t forward = table_.Find(Op::kForward, stage, mb);
  Add(BlockKind::kStash, stage, mb, memory.stash_bytes, forward, forward, kNever);
  Add(BlockKind::kWeightStash, stage, mb, memory.weight_stash_bytes, forward, forward, kNever);
}

void Lifetimes::AddStashes(StageId stage, MicroBatch mb, bool splits_backward) {
  const StageMemory& memory = MemoryOf(stage);
  const int32_t forward = table_.Find(Op::kForward, stage, mb);
  const int32_t backward = table_.Find(Op::kBackwardInput, stage, mb);
  const int32_t weight = table_.Find(Op::kBackwardWeight, stage, mb);
  if (table_.Find(Op::kOffload, stage, mb) != ActionTable::kNowhere) {
    AddMovedStashes(stage, mb);
  } else {
    Add(BlockKind::kStash, stage, mb, memory.stash_bytes, forward, backward, forward);
    Add(BlockKind::kWeightStash, stage, mb, memory.weight_stash_bytes, forward, weight, forward);
  }
  if (!splits_backward) return;
  const bool fused = backward == weight;
  Add(BlockKind::kGradientStash, stage, mb, memory.gradient_stash_bytes, backward, weight,
      fused ? kNever : backward);
}

void Lifetimes::AddMovedStashes(StageId stage, MicroBatch mb) {
  const StageMemory& memory = MemoryOf(stage);
  const int32_t forward = table_.Find(Op::kForward, stage, mb);
  const int32_t offload = table_.Find(Op::kOffload, stage, mb);
  const int32_t released = table_.Find(Op::kRelease, stage, mb);
  const int32_t fetch = table_.Find(Op::kFetch, stage, mb);
  const int32_t backward = table_.Find(Op::kBackwardInput, stage, mb);
  const int32_t weight = table_.Find(Op::kBackwardWeight, stage, mb);
  Add(BlockKind::kStash, stage, mb, memory.stash_bytes, forward, released, forward);
  Add(BlockKind::kWeightStash, stage, mb, memory.weight_stash_bytes, forward, released, forward);
  Add(BlockKind::kFetchedStash, stage, mb, memory.stash_bytes, fetch, backward, fetch);
  Add(BlockKind::kFetchedWeightStash, stage, mb, memory.weight_stash_bytes, fetch, weight, fetch);
  for (const auto& [kind, bytes] :
       {std::pair(BlockKind::kStash, memory.stash_bytes),
        std::pair(BlockKind::kWeightStash, memory.weight_stash_bytes)}) {
    if (bytes == 0) continue;
    host_blocks_.push_back({kind, stage, mb, AlignBlock(bytes), 0, offload, backward});
  }
}

void Lifetimes::AddGradients(StageId stage, MicroBatch mb) {
  const StageMemory& memory = MemoryOf(stage);
  const bool received = schedule_.sends_to_next(stage);
  if (received || schedule_.is_last(stage)) {  // otherwise the next stage's input gradient
    Add(BlockKind::kOutputGradient, stage, mb, memory.output_gradient_bytes,
        table_.Find(received ? Op::kReceiveGradient : Op::kForward, stage, mb),
        PositionOf(memory.output_gradient_last_use, stage, mb), kNever);
  }
  if (schedule_.is_first(stage)) return;
  int64_t bytes = memory.input_gradient_bytes;
  int32_t last = 0;
  if (schedule_.receives_from_previous(stage)) {
    last = CompletionOf(Op::kSendGradient, stage, mb);
  } else {
    const StageId previous(stage.value() - 1);
    const StageMemory& reader = MemoryOf(previous);
    bytes = std::max(bytes, reader.output_gradient_bytes);
    last = PositionOf(reader.output_gradient_last_use, previous, mb);
  }
  Add(BlockKind::kInputGradient, stage, mb, bytes, table_.Find(Op::kBackwardInput, stage, mb), last,
      kNever);
}

MemoryPlan Lifetimes::Finish() {
  MemoryPlan plan;
  plan.blocks.resize(entries_.size());
  // The entries were added in the order of stage, micro-batch and kind, so counting sorts them.
  std::vector<size_t> places(completion_.size() + 1, 0);  // index: first
  for (const Entry& entry : entries_) ++places[static_cast<size_t>(entry.block.first) + 1];
  std::partial_sum(places.begin(), places.end(), places.begin());
  plan.host_blocks = std::move(host_blocks_);
  std::stable_sort(plan.host_blocks.begin(), plan.host_blocks.end(),
                   [](const Block& a, const Block& b) { return a.first < b.first; });
  // Index: position in the list; bytes that appear there minus those that have just gone.
  std::vector<int64_t> live_change(completion_.size() + 1, 0);
  std::vector<int64_t> stash_change(completion_.size() + 1, 0);
  std::vector<int64_t> stash_ends(completion_.size(), 0);  // what goes with the action
  for (const Entry& entry : entries_) {
    const Block& block = entry.block;
    const size_t after = static_cast<size_t>(block.last) + 1;
    live_change[static_cast<size_t>(block.first)] += block.bytes;
    live_change[after] -= block.bytes;
    if (entry.stash_first != kNever) {
      stash_change[static_cast<size_t>(entry.stash_first)] += block.bytes;
      stash_change[after] -= block.bytes;
      stash_ends[static_cast<size_t>(block.last)] += block.bytes;
    }
    plan.blocks[places[static_cast<size_t>(block.first)]++] = block;
  }
  int64_t live = 0;
  int64_t stash = 0;
  plan.stash_bytes_during.reserve(completion_.size());
  plan.stash_bytes_after.reserve(completion_.size());
  for (size_t i = 0; i < completion_.size(); ++i) {
    plan.peak_live_bytes = std::max(plan.peak_live_bytes, live += live_change[i]);
    plan.peak_stash_bytes = std::max(plan.peak_stash_bytes, stash += stash_change[i]);
    plan.stash_bytes_during.push_back(stash);
    plan.stash_bytes_after.push_back(stash - stash_ends[i]);
  }
  return plan;
}

}  // namespace stagecoach::schedule
