#ifndef STAGECOACH_KERNELS_CUDA_OPS_ELEMENTWISE_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_ELEMENTWISE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

namespace stagecoach::kernels {

// Computes y = a + b, rounded once. y may be a or b.
cudaError_t LaunchAdd(cudaStream_t stream, ElementType type, int64_t elements, const void* a,
                      const void* b, void* y);

inline constexpr int kMostAddends = 64;
struct Addends {
  const float* values[kMostAddends];  // null: left out
};

// Computes y, the sum of the first `count` addends in the tree of ElementwiseOps::SumTree. y may be
// one of them.
cudaError_t LaunchSumTree(cudaStream_t stream, int64_t elements, const Addends& addends, int count,
                          float* y);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ELEMENTWISE_KERNELS_H_
