#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_GRADIENT_TREE_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_GRADIENT_TREE_H_

#include <vector>

namespace stagecoach::engine {

// The order in which one replica sums the gradients of its micro-batches: those of each of its
// blocks one after the other, and the blocks in a balanced binary tree
// (partition/cost/replication.h). A sum is kept in one of several copies of the gradients; at the
// end, all are summed in copy 0.
class GradientTree {
 public:
  // Copies of the gradients that are added: copy `to` = copy `left` + copy 0.
  struct Merge {
    int to = 0;
    int left = 0;

    friend bool operator==(const Merge&, const Merge&) = default;
  };

  // Makes the tree of one replica. Pre-condition: `blocks` is a power of two that divides
  // `micro_batches`.
  GradientTree(int micro_batches, int blocks)
      : blocks_(blocks), block_size_(micro_batches / blocks) {}

  // Returns whether the micro-batch is the first of its block, whose gradients overwrite what is
  // there.
  bool is_first(int micro_batch) const { return micro_batch % block_size_ == 0; }
  // Returns the copy to which the gradients of the micro-batch are added.
  int CopyOf(int micro_batch) const { return CopyOfBlock(micro_batch / block_size_); }
  // Returns what is added once the gradients of the micro-batch are in its copy, in this order.
  std::vector<Merge> MergesAfter(int micro_batch) const;

 private:
  // Returns the copy that keeps the sum of the largest subtree that starts with a block, and waits
  // for its other half; 0 for a block that completes a subtree at once.
  int CopyOfBlock(int block) const;

  int blocks_;
  int block_size_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_GRADIENT_TREE_H_
