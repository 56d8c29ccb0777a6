#ifndef STAGECOACH_TESTS_KERNELS_ATTENTION_BOUNDS_H_
#define STAGECOACH_TESTS_KERNELS_ATTENTION_BOUNDS_H_

#include "kernels/ops/attention.h"
#include "tests/testing/reference.h"

namespace stagecoach::kernels {

// How far attention may be from the oracle, for any order of summation and any tiles of at least 16
// keys (tests/testing/tolerance.h). Sums are float32. Operands of products, which are turned
// queries and keys, weights and their gradients, may be rounded to the activation type `type`. If
// that is bfloat16, sums may be formed on tensor cores, which truncate them. What is then stored in
// it is not rounded yet.
struct AttentionForwardBounds {
  reference::Vector statistics;
  reference::Vector y;
};
AttentionForwardBounds BoundsOfAttention(const AttentionShape& shape, reference::Values qkv,
                                         const reference::AttentionOutput& exact,
                                         DType type = DType::kFloat32);

// Of dqkv, where y and the statistics it is computed from are the exact ones, rounded to `type` and
// to float32.
reference::Vector BoundsOfAttentionGradient(const AttentionShape& shape, reference::Values dy,
                                            reference::Values qkv,
                                            const reference::AttentionOutput& exact,
                                            DType type = DType::kFloat32);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_TESTS_KERNELS_ATTENTION_BOUNDS_H_
