#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_EXPONENTIAL_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_EXPONENTIAL_CUH_

// The emulator's version: it is found before the file of this name that nvcc sees, and has the same
// contract.
#include <cfloat>
#include <cmath>

namespace stagecoach::kernels {

inline constexpr float kLog2E = 1.44269504088896341F;

inline float FlushedExp2(float x) {
  const float result = std::exp2(x);
  return result < FLT_MIN ? 0.0F : result;
}

inline float FlushedExp(float x) { return FlushedExp2(x * kLog2E); }

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_EXPONENTIAL_CUH_
