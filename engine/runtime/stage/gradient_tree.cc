#include "engine/runtime/stage/gradient_tree.h"

#include <bit>

namespace stagecoach::engine {

int GradientTree::CopyOfBlock(int block) const {
  if (blocks_ == 1 || block % 2 == 1) return 0;
  // The largest left half of a tree that starts here: all but the first block end below the tree
  // whose right half they are in. A half of 2^t blocks waits in copy t + 1.
  if (block == 0) return std::countr_zero(static_cast<unsigned>(blocks_));
  return std::countr_zero(static_cast<unsigned>(block));
}

std::vector<GradientTree::Merge> GradientTree::MergesAfter(int micro_batch) const {
  std::vector<Merge> merges;
  const int block = micro_batch / block_size_;
  const bool ends = (micro_batch + 1) % block_size_ == 0;
  if (!ends || block % 2 == 0) return merges;
  // The block completes as many subtrees as its number has trailing ones.
  const int subtrees = std::countr_one(static_cast<unsigned>(block));
  for (int i = 1; i <= subtrees; ++i) {
    const int left = CopyOfBlock(block + 1 - (1 << i));
    // A complete subtree waits where its left half did, unless it is the left half of nothing.
    const bool waits = i == subtrees && block + 1 != blocks_;
    merges.push_back({.to = waits ? left : 0, .left = left});
  }
  return merges;
}

}  // namespace stagecoach::engine
