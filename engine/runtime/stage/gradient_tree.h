#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_GRADIENT_TREE_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_GRADIENT_TREE_H_

#include <vector>

#include "partition/cost/replication.h"

namespace stagecoach::engine {

// The order in which one replica sums the gradients of its micro-batches: those of each of its
// blocks one after the other, and the blocks in its subtrees of a binary tree
// (partition/cost/replication.h). Sums are kept in a stack of copies of the gradients: a block is
// summed in the copy above the complete sums, and two halves of a subtree are added in the copy of
// the left one. At the end, copy i has the sum of subtree i.
class GradientTree {
 public:
  // Makes the tree of one replica. Pre-condition: `micro_batches`, those of the replica, divide
  // into the blocks of one.
  GradientTree(int micro_batches, int replica, const partition::Replication& replication);

  // Returns whether the micro-batch is the first of its block, whose gradients overwrite what is
  // there.
  bool is_first(int micro_batch) const { return micro_batch % block_size_ == 0; }
  // Returns the copy to which the gradients of the micro-batch are added.
  int CopyOf(int micro_batch) const { return BlockOf(micro_batch).copy; }
  // Returns how many subtrees are complete once the gradients of the micro-batch are in its copy.
  // For each, the highest copy that has a sum is added to the one below.
  int MergesAfter(int micro_batch) const {
    return is_first(micro_batch + 1) ? BlockOf(micro_batch).merges : 0;
  }

 private:
  struct Block {
    int copy = 0;
    int merges = 0;
  };
  const Block& BlockOf(int micro_batch) const {
    return blocks_[static_cast<size_t>(micro_batch / block_size_)];
  }

  int block_size_;
  std::vector<Block> blocks_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_GRADIENT_TREE_H_
