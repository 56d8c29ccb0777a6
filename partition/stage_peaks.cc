#include "partition/stage_peaks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "schedule/validator.h"

namespace stagecoach::partition {
namespace {

using schedule::AlignBlock;
using schedule::LastUse;
using schedule::Rank;
using schedule::StageId;
using schedule::StageMemory;

StagePosition PositionOf(const schedule::Schedule& lowered, int stage) {
  StagePosition position;
  position.is_first = lowered.is_first(StageId(stage));
  position.is_last = lowered.is_last(StageId(stage));
  position.splits_backward = lowered.SplitsBackward(StageId(stage));
  return position;
}

// What lives during the forward action that brings the stash to `stashed` micro-batches. Buffers
// that transfers keep longer come on top.
int64_t BytesDuringForward(const StageMemory& memory, int stashed, bool is_last) {
  const auto live = [stashed](int64_t bytes, LastUse last_use) {
    return AlignBlock(bytes) * (last_use == LastUse::kForward ? 1 : stashed);
  };
  int64_t bytes = AlignBlock(memory.parameter_bytes) + AlignBlock(memory.gradient_bytes) +
                  AlignBlock(memory.optimizer_bytes) + AlignBlock(memory.other_resident_bytes) +
                  AlignBlock(memory.workspace_bytes);
  bytes += live(memory.input_bytes, memory.input_last_use);
  bytes += live(memory.output_bytes, memory.output_last_use);
  bytes += live(memory.stash_bytes, LastUse::kBackwardInput);
  bytes += live(memory.weight_stash_bytes, LastUse::kBackwardWeight);
  if (is_last) bytes += live(memory.output_gradient_bytes, LastUse::kBackwardInput);
  return bytes;
}

}  // namespace

StagePeaks::StagePeaks(absl::Span<const LayerCost> layers, const LossMemory& loss,
                       schedule::Schedule lowered)
    : layers_(layers),
      loss_(loss),
      lowered_(std::move(lowered)),
      peak_stash_(schedule::PeakStash(lowered_)) {
  for (int stage = 0; stage < lowered_.num_stages(); ++stage) {
    STAGECOACH_CHECK(lowered_.rank_of(StageId(stage)) == Rank(stage),
                     "a plan has stage i on device i");
    positions_.push_back(PositionOf(lowered_, stage));
  }
}

const StageMemory& StagePeaks::Memory(const StageRange& range) {
  auto [entry, is_new] = memory_.try_emplace(range);
  if (is_new) {
    entry->second = AggregateStage(layers_.subspan(range.first, range.last - range.first + 1),
                                   loss_, positions_[range.stage]);
  }
  return entry->second;
}

absl::StatusOr<schedule::MemoryPlan> StagePeaks::PlanRange(const StageRange& range) {
  std::vector<StageMemory> stages(lowered_.num_stages());
  stages[range.stage] = Memory(range);
  return schedule::PlanMemory(lowered_, Rank(range.stage), stages);
}

absl::StatusOr<int64_t> StagePeaks::PeakBytes(const StageRange& range) {
  if (auto entry = peak_bytes_.find(range); entry != peak_bytes_.end()) return entry->second;
  ASSIGN_OR_RETURN(const schedule::MemoryPlan plan, PlanRange(range));
  peak_bytes_.emplace(range, plan.peak_bytes());
  return plan.peak_bytes();
}

int64_t StagePeaks::AtLeast(const StageRange& range) {
  if (auto entry = peak_bytes_.find(range); entry != peak_bytes_.end()) return entry->second;
  return BytesDuringForward(Memory(range), peak_stash_[range.stage],
                            positions_[range.stage].is_last);
}

}  // namespace stagecoach::partition
