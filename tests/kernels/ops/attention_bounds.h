#ifndef STAGECOACH_TESTS_KERNELS_OPS_ATTENTION_BOUNDS_H_
#define STAGECOACH_TESTS_KERNELS_OPS_ATTENTION_BOUNDS_H_

#include "kernels/ops/attention.h"
#include "tests/testing/reference.h"

namespace stagecoach::kernels {

// Bounds of the distance between attention and the oracle, for any order of summation and any tiles
// of at least 16 keys (tests/testing/tolerance.h). Sums are float32. Operands of products (rotated
// queries and keys, weights and their gradients) may be rounded to the activation type `type`. If
// that is bfloat16, sums may be formed on tensor cores, which truncate them. The bounds do not
// include the rounding of what is then stored in that type.
struct AttentionForwardBounds {
  reference::Vector statistics;
  reference::Vector y;
};
AttentionForwardBounds BoundsOfAttention(const AttentionShape& shape, reference::Values qkv,
                                         const reference::AttentionOutput& exact,
                                         DType type = DType::kFloat32);

// Bounds of dqkv, if y and the statistics it is computed from are the exact ones, rounded to `type`
// and to float32.
reference::Vector BoundsOfAttentionGradient(const AttentionShape& shape, reference::Values dy,
                                            reference::Values qkv,
                                            const reference::AttentionOutput& exact,
                                            DType type = DType::kFloat32);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_TESTS_KERNELS_OPS_ATTENTION_BOUNDS_H_
