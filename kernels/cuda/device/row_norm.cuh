#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_ROW_NORM_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_ROW_NORM_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/team_rows.cuh"

// What determines the bits of LayerNorm and RMSNorm of a row, for the kernels that compute it: the
// norm's own, and products that compute the norm of their input.
namespace stagecoach::kernels {

// The elements of each row that a thread keeps in float32 registers: enough 16-byte loads in flight
// to keep the memory busy. In short rows each thread has few values, so that none is idle.
inline constexpr int kShortNormRow = 256;
inline constexpr int kShortNormShare = 8;
inline constexpr int kNormShare = 32;

// Returns the warps of a row's team, if its threads keep vectors of several columns.
__host__ __device__ constexpr int NormWarps(int64_t features) {
  const int64_t share = features <= kShortNormRow ? kShortNormShare : kNormShare;
  return static_cast<int>((features + kWarp * share - 1) / (kWarp * share));
}

// Returns a sum of squared differences from the mean with one more of them.
__device__ __forceinline__ float AddSquare(float x, float mean, float squares) {
  return __fmaf_rn(x - mean, x - mean, squares);
}

// Returns 1 / sqrt(variance + epsilon).
__device__ __forceinline__ float NormRstd(float squares, float features, float epsilon) {
  return 1.0F / sqrtf(squares / features + epsilon);
}

__device__ __forceinline__ float Normalized(float x, float mean, float rstd, float gamma,
                                            float beta) {
  return __fmaf_rn((x - mean) * rstd, gamma, beta);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_ROW_NORM_CUH_
