#ifndef STAGECOACH_ENGINE_BLOCK_TABLE_H_
#define STAGECOACH_ENGINE_BLOCK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/arena.h"
#include "schedule/memory.h"
#include "schedule/schedule.h"

namespace stagecoach::engine {

// The blocks of one rank's memory plan while its list of actions is being performed: claims each in
// the arena before the action that first needs it and releases it after the last. Allocates nothing
// after construction.
class BlockTable {
 public:
  // `base`: where the plan's dynamic area starts in the arena, which must outlive this.
  BlockTable(kernels::Arena& arena, int64_t base, schedule::MemoryPlan plan,
             const schedule::Schedule& schedule);

  const schedule::MemoryPlan& plan() const { return plan_; }

  // Before the first action of a run. Pre-condition: the last run ended well.
  void Restart();
  // Around the action at `position` of the rank's list; positions must come in order. Errors are
  // the arena's: the plan and the run disagree.
  absl::Status Begin(int position);
  absl::Status End(int position);

  // Address of a live block; null if there is none.
  std::byte* Find(schedule::BlockKind kind, schedule::StageId stage,
                  schedule::MicroBatch micro_batch) const {
    return addresses_[Index(kind, stage, micro_batch)];
  }

 private:
  size_t Index(schedule::BlockKind kind, schedule::StageId stage,
               schedule::MicroBatch micro_batch) const {
    return (static_cast<size_t>(stage.value()) * schedule::kNumBlockKinds +
            static_cast<size_t>(kind)) *
               micro_batches_ +
           static_cast<size_t>(micro_batch.value());
  }

  kernels::Arena& arena_;
  const int64_t base_;
  const schedule::MemoryPlan plan_;
  const size_t micro_batches_;
  std::vector<int32_t> by_last_;  // indices of plan_.blocks, ascending by `last`
  size_t next_claim_ = 0;         // into plan_.blocks, which ascend by `first`
  size_t next_release_ = 0;       // into by_last_
  std::vector<std::byte*> addresses_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_BLOCK_TABLE_H_
