#ifndef STAGECOACH_ENGINE_RUNTIME_BLOCK_TABLE_H_
#define STAGECOACH_ENGINE_RUNTIME_BLOCK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/arena.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::engine {

// The blocks of one rank's memory plan while its list of actions runs: claims each in the arena
// before the action that first needs it, releases it after the last, and counts what is stashed
// meanwhile. Allocates nothing after construction.
class BlockTable {
 public:
  // `base`: the start of the plan's dynamic area in the arena, which must outlive this.
  BlockTable(kernels::Arena& arena, int64_t base, schedule::MemoryPlan plan);

  // Called before the first action of a run. Pre-condition: the last run ended well.
  void Restart();
  // Called before and after the action at `position` of the rank's list; positions must come in
  // order. Errors are the arena's: the plan and the run disagree.
  absl::Status Begin(int position);
  absl::Status End(int position);

  // Counts a claimed block (an index into the plan's) as stash from now on until its release.
  void Stash(int32_t block);
  int64_t stash_bytes() const { return stash_bytes_; }            // now
  int64_t peak_stash_bytes() const { return peak_stash_bytes_; }  // since construction

 private:
  kernels::Arena& arena_;
  const int64_t base_;
  const schedule::MemoryPlan plan_;
  std::vector<int32_t> by_last_;   // indices of plan_.blocks, ascending by `last`
  std::vector<uint8_t> is_stash_;  // index: as plan_.blocks
  size_t next_claim_ = 0;          // into plan_.blocks, which ascend by `first`
  size_t next_release_ = 0;        // into by_last_
  int64_t stash_bytes_ = 0;
  int64_t peak_stash_bytes_ = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_BLOCK_TABLE_H_
