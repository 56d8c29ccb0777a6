#ifndef STAGECOACH_TESTS_KERNELS_ATTENTION_BOUNDS_H_
#define STAGECOACH_TESTS_KERNELS_ATTENTION_BOUNDS_H_

#include "kernels/ops/attention.h"
#include "tests/testing/reference.h"

namespace stagecoach::kernels {

// How far attention in float32 may be from the oracle, for any order of summation and any tiles of
// at least 16 keys (tests/testing/tolerance.h).
struct AttentionForwardBounds {
  reference::Vector statistics;
  reference::Vector y;
};
AttentionForwardBounds BoundsOfAttention(const AttentionShape& shape, reference::Values qkv,
                                         const reference::AttentionOutput& exact);

// Of dqkv, where y and the statistics it is computed from are the exact ones, rounded.
reference::Vector BoundsOfAttentionGradient(const AttentionShape& shape, reference::Values dy,
                                            reference::Values qkv,
                                            const reference::AttentionOutput& exact);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_TESTS_KERNELS_ATTENTION_BOUNDS_H_
