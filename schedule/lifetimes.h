#ifndef STAGECOACH_SCHEDULE_LIFETIMES_H_
#define STAGECOACH_SCHEDULE_LIFETIMES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schedule/action_table.h"
#include "schedule/memory.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// Derives the blocks of one rank from the order of its actions, as memory.h defines them. Refers to
// what it is constructed with.
class Lifetimes {
 public:
  Lifetimes(const Schedule& schedule, Rank rank, const ActionTable& table,
            absl::Span<const StageMemory> stages);

  // InvalidArgument unless every action is there from which a lifetime of `stage` is derived.
  absl::Status CheckLowered(StageId stage) const;

  // Adds the blocks of all micro-batches; stages in ascending order. Pre-condition:
  // CheckLowered(stage) is OK.
  void AddStage(StageId stage);

  // A plan with the blocks, not yet packed, and the peaks of the live and of the stashed bytes.
  MemoryPlan Finish();

 private:
  static constexpr int32_t kNever = -1;

  struct Entry {
    Block block;
    int32_t stash_first;  // from where on it counts as stash; kNever if it does not
  };

  const StageMemory& MemoryOf(StageId stage) const {
    return stages_[static_cast<size_t>(stage.value())];
  }
  bool IsKept(LastUse use) const { return trains_ && use != LastUse::kForward; }
  int32_t PositionOf(LastUse use, StageId stage, MicroBatch mb) const;
  int32_t CompletionOf(Op send, StageId stage, MicroBatch mb) const {
    return completion_[static_cast<size_t>(table_.Find(send, stage, mb))];
  }

  void AddInput(StageId stage, MicroBatch mb);
  void AddOutput(StageId stage, MicroBatch mb);
  void AddUnreadStashes(StageId stage, MicroBatch mb);
  void AddStashes(StageId stage, MicroBatch mb, bool splits_backward);
  void AddGradients(StageId stage, MicroBatch mb);
  void Add(BlockKind kind, StageId stage, MicroBatch mb, int64_t bytes, int32_t first, int32_t last,
           int32_t stash_first);

  const Schedule& schedule_;
  const ActionTable& table_;
  const absl::Span<const StageMemory> stages_;
  const bool trains_;
  const std::vector<int32_t> completion_;  // index: position of a send
  std::vector<Entry> entries_;
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_LIFETIMES_H_
