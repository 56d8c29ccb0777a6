#ifndef STAGECOACH_PARTITION_COST_TIE_H_
#define STAGECOACH_PARTITION_COST_TIE_H_

#include <algorithm>
#include <cstdint>

#include "partition/cost/layer_cost.h"

namespace stagecoach::partition {

// Two layers that share a parameter, such as the embedding of a language model and its head. Each
// keeps a copy, wherever it is, with its own gradients and optimizer states. Before the update, the
// gradients of the two are summed on both (TIES): by an exchange, if they are on different ranks.
struct Tie {
  int layer = 0;
  int other_layer = 0;  // above it
  int64_t bytes = 0;    // of the gradient

  friend bool operator==(const Tie&, const Tie&) = default;
};

// The most parts in which two ranks exchange a gradient. While one part is added, the next is
// received: both are in the workspace of the layers' stages.
inline constexpr int kTieParts = 16;
constexpr int64_t TiePartBytes(int64_t bytes) {
  return std::max(AlignTensor((bytes + kTieParts - 1) / kTieParts), kTensorAlignment);
}
constexpr int64_t TieWorkspaceBytes(int64_t bytes) { return 2 * TiePartBytes(bytes); }

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_TIE_H_
