#include "engine/runtime/stage/gradient_tree.h"

#include <bit>

namespace stagecoach::engine {

GradientTree::GradientTree(int micro_batches, int replica,
                           const partition::Replication& replication)
    : block_size_(micro_batches / replication.blocks_per_replica()) {
  int complete = 0;
  for (const partition::BlockRange& subtree : partition::SubtreesOf(replica, replication)) {
    for (unsigned i = 0; i < static_cast<unsigned>(subtree.count); ++i) {
      // A binary counter: each one in the number of blocks before is a sum that waits for its other
      // half. The last block completes all of them.
      const bool is_last = static_cast<int>(i) + 1 == subtree.count;
      blocks_.push_back({.copy = complete + std::popcount(i),
                         .merges = is_last ? std::popcount(i) : std::countr_one(i)});
    }
    ++complete;
  }
}

}  // namespace stagecoach::engine
