#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_TILED_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_TILED_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/ops/attention_kernels.h"

// Code that the tiled attention kernels share, forward and backward. Fragments of tiles are as in
// tensor_core.cuh; a warp has kM times 16 rows.
namespace stagecoach::kernels {

// Warps per multiprocessor, limited by the registers that a thread needs: two for each of its four
// parts.
inline constexpr int kTiledWarps = 8;

inline constexpr float kLogOfE = 1.44269504088896340736F;  // log2(e)

// Returns 1 / sqrt(n), by Newton's method from a number that is less.
constexpr float InverseRoot(int n) {
  double root = 1.0 / n;
  for (int step = 0; step < 40; ++step) root *= 1.5 - 0.5 * n * root * root;
  return static_cast<float>(root);
}
template <int D>
inline constexpr float kScale = InverseRoot(D);
// The factor from q k to exponents to the base 2.
template <int D>
inline constexpr float kExponentScale = kScale<D>* kLogOfE;

// Returns a head's row at `position`, counted from that of the first sample.
template <int D>
__device__ const __nv_bfloat16* RowOf(const HeadsOf<const void*>& tensor, int64_t position,
                                      int64_t head) {
  return static_cast<const __nv_bfloat16*>(tensor.data) + position * tensor.stride + head * D;
}
template <int D>
__device__ __nv_bfloat16* RowOf(const HeadsOf<void*>& tensor, int64_t position, int64_t head) {
  return static_cast<__nv_bfloat16*>(tensor.data) + position * tensor.stride + head * D;
}

// Sets the scores, among 16 rows, whose key comes after their query to minus infinity.
template <bool kKeysAreRows, int kColumns>
__device__ __forceinline__ void MaskLaterKeys(float (&scores)[kColumns / 8][4], int first_row,
                                              int first_column) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = first_row + lane / 4, column = first_column + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int ahead = (column + 8 * n + i % 2) - (row + 8 * (i / 2));
      if (kKeysAreRows ? ahead < 0 : ahead > 0) scores[n][i] = -INFINITY;
    }
  }
}

// Scales by 1 / sqrt(D).
template <int D, int kM>
__device__ __forceinline__ void ScaleGradient(float (&x)[kM][D / 8][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) x[m][i / 4][i % 4] *= kScale<D>;
  }
}

// Rotates rows of gradients back; the first is that of `position`.
template <int D, int kM>
__device__ __forceinline__ void TurnBack(float (&x)[kM][D / 8][4], const float2* turns,
                                         int position, int positions) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t t = position + 16 * m + 8 * half + lane / 4;
      if (t >= positions) continue;
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        const float4 turn =
            *reinterpret_cast<const float4*>(turns + t * (D / 2) + 8 * n + lane % 4 * 2);
        float(&a)[4] = x[m][n], (&b)[4] = x[m][n + D / 16];
        const float a0 = a[2 * half], a1 = a[2 * half + 1];
        const float b0 = b[2 * half], b1 = b[2 * half + 1];
        a[2 * half] = a0 * turn.x + b0 * turn.y;
        b[2 * half] = b0 * turn.x - a0 * turn.y;
        a[2 * half + 1] = a1 * turn.z + b1 * turn.w;
        b[2 * half + 1] = b1 * turn.z - a1 * turn.w;
      }
    }
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_TILED_CUH_
