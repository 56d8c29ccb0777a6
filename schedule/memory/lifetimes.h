#ifndef STAGECOACH_SCHEDULE_MEMORY_LIFETIMES_H_
#define STAGECOACH_SCHEDULE_MEMORY_LIFETIMES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schedule/ir/action_table.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::schedule {

// Derives the blocks of one rank from the order of its actions, as memory_plan.h defines them.
// Keeps references to its constructor's arguments.
class Lifetimes {
 public:
  Lifetimes(const Schedule& schedule, Rank rank, const ActionTable& table,
            absl::Span<const StageMemory> stages);

  // Returns InvalidArgument unless every action from which a lifetime of `stage` is derived exists.
  absl::Status CheckLowered(StageId stage) const;

  // Adds the blocks of all micro-batches; stages in ascending order. Pre-condition:
  // CheckLowered(stage) is OK.
  void AddStage(StageId stage);

  // Returns a plan with the blocks, not yet packed, and the peaks of the live and the stashed
  // bytes.
  MemoryPlan Finish();

 private:
  static constexpr int32_t kNever = -1;

  struct Entry {
    Block block;
    int32_t stash_first;  // position from which it counts as stash; kNever if it does not
  };

  const StageMemory& MemoryOf(StageId stage) const {
    return stages_[static_cast<size_t>(stage.value())];
  }
  bool IsKept(LastUse use) const { return trains_ && use != LastUse::kForward; }
  int32_t PositionOf(LastUse use, StageId stage, MicroBatch mb) const;
  int32_t CompletionOf(Op op, StageId stage, MicroBatch mb) const {
    return completion_[static_cast<size_t>(table_.Find(op, stage, mb))];
  }

  void AddInput(StageId stage, MicroBatch mb);
  void AddOutput(StageId stage, MicroBatch mb);
  void AddUnreadStashes(StageId stage, MicroBatch mb);
  void AddStashes(StageId stage, MicroBatch mb, bool splits_backward);
  void AddMovedStashes(StageId stage, MicroBatch mb);
  void AddGradients(StageId stage, MicroBatch mb);
  void Add(BlockKind kind, StageId stage, MicroBatch mb, int64_t bytes, int32_t first, int32_t last,
           int32_t stash_first);

  const Schedule& schedule_;
  const ActionTable& table_;
  const absl::Span<const StageMemory> stages_;
  const bool trains_;
  const std::vector<int32_t> completion_;  // index: position of a send
  std::vector<Entry> entries_;
  std::vector<Block> host_blocks_;
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_MEMORY_LIFETIMES_H_
