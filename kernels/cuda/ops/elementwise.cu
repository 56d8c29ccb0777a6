#include <cuda_runtime.h>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/map.cuh"
#include "kernels/cuda/ops/elementwise_kernels.h"

namespace stagecoach::kernels {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

constexpr int kThreads = 256;
constexpr int kMostBlocks = 4096;

// Each element belongs to one thread, which reads all addends before it writes.
template <int kCount>
__global__ void __launch_bounds__(kThreads)
    SumTreeKernel(const Addends addends, int64_t elements, float* y) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += stride) {
    float sums[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      // Negative zero changes no number that it is added to, not even zeros.
      sums[k] = addends.values[k] == nullptr ? -0.0F : addends.values[k][i];
    }
#pragma unroll
    for (int width = kCount / 2; width > 0; width /= 2) {
#pragma unroll
      for (int k = 0; k < width; ++k) sums[k] = sums[2 * k] + sums[2 * k + 1];
    }
    y[i] = sums[0];
  }
}

template <int kCount>
cudaError_t LaunchSumTreeOf(cudaStream_t stream, int64_t elements, const Addends& addends,
                            int count, float* y) {
  if constexpr (kCount > kMostAddends) {
    return cudaErrorInvalidValue;
  } else {
    if (count > kCount) return LaunchSumTreeOf<2 * kCount>(stream, elements, addends, count, y);
    const int64_t blocks = (elements + kThreads - 1) / kThreads;
    return Launch(SumTreeKernel<kCount>,
                  dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks)),
                  dim3(kThreads), 0, stream, addends, elements, y);
  }
}

}  // namespace

cudaError_t LaunchSumTree(cudaStream_t stream, int64_t elements, const Addends& addends, int count,
                          float* y) {
  if (elements == 0) return cudaSuccess;
  return LaunchSumTreeOf<1>(stream, elements, addends, count, y);
}

cudaError_t LaunchAdd(cudaStream_t stream, ElementType type, int64_t elements, const void* a,
                      const void* b, void* y) {
  return LaunchMap<Sum>(stream, type, elements, a, b, y);
}

}  // namespace stagecoach::kernels
