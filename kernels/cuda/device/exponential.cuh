#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_EXPONENTIAL_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_EXPONENTIAL_CUH_

#include <cuda_runtime.h>

namespace stagecoach::kernels {

inline constexpr float kLog2E = 1.44269504088896341F;

// Returns 2^x to within 2 units in the last place, or 0 if that is below the smallest normal
// number. One instruction; exp2f and __expf have three more for the subnormal ones.
__device__ __forceinline__ float FlushedExp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Returns e^x, with the error of __expf otherwise.
__device__ __forceinline__ float FlushedExp(float x) { return FlushedExp2(x * kLog2E); }

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_EXPONENTIAL_CUH_
