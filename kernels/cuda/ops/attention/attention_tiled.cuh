#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_TILED_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_TILED_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_seen.cuh"
#include "kernels/math.h"

// Code that the tiled attention kernels share, forward and backward. Fragments of tiles are as in
// tensor_core.cuh; a warp has kM times 16 rows.
namespace stagecoach::kernels {

// Warps per multiprocessor, limited by the registers that a thread needs: two for each of its four
// parts.
inline constexpr int kTiledWarps = 8;

inline constexpr float kLogOfE = 1.44269504088896340736F;  // log2(e)

// The tile and the row, among the heads of all samples, of a block.
struct BlockPlace {
  int tile, row;
};
// Places the blocks in the order in which they start: a tile of every row, then the next tile, so
// that those that take longest, whose tiles come first, are not left for the end. But only
// kRowsAtOnce rows are walked over at a time, which find what they share in the GPU's cache.
__device__ inline BlockPlace PlaceOfBlock(int tiles, int rows) {
  constexpr int kRowsAtOnce = 32;
  const int block = static_cast<int>(blockIdx.x);
  const int first = block / (tiles * kRowsAtOnce) * kRowsAtOnce;
  const int place = block - first * tiles, count = min(rows - first, kRowsAtOnce);
  return {place / count, first + place % count};
}

// The numbers of a query that its weights need, backward, with exponents to the base 2. The weight
// of a missing query is 0.
struct OfQuery {
  float statistic = INFINITY;
  float row_sum = 0;
};
__device__ inline OfQuery ReadOfQuery(const AttentionArguments& args, int64_t row, int64_t t) {
  // Without a branch: lanes stay together for what takes the whole warp.
  const int64_t place = row * args.positions + (t < args.positions ? t : args.positions - 1);
  const float statistic = args.statistics[place] * kLogOfE, row_sum = args.row_sums[place];
  return t < args.positions ? OfQuery{statistic, row_sum} : OfQuery{};
}

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

// Sets the scores, among 16 rows, whose key comes after their query to minus infinity, or weights
// to 0.
template <bool kKeysAreRows, int kColumns>
__device__ __forceinline__ void MaskLaterKeys(float (&scores)[kColumns / 8][4], int first_row,
                                              int first_column, float masked = -INFINITY) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = first_row + lane / 4, column = first_column + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int ahead = (column + 8 * n + i % 2) - (row + 8 * (i / 2));
      if (kKeysAreRows ? ahead < 0 : ahead > 0) scores[n][i] = masked;
    }
  }
}

// Does so, among 16 rows, with those that their query does not see although they come before it.
// `bounds` has for each row the first key that it sees or, of rows that are keys, the end of the
// queries that see it.
template <bool kKeysAreRows, int kColumns>
__device__ __forceinline__ void MaskBeyondBounds(float (&scores)[kColumns / 8][4],
                                                 const int* bounds, int first_column) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int column = first_column + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int bound = bounds[lane / 4 + 8 * half];
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const bool is_before = column + i / 2 * 8 + i % 2 < bound;
      if (kKeysAreRows != is_before) scores[i / 2][2 * half + i % 2] = -INFINITY;
    }
  }
}

// Turns products q k into shares of the cap.
template <int kM, int kN>
__device__ __forceinline__ void Cap(float tanh_scale, float (&scores)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < 4 * kN; ++i) {
      float& score = scores[m][i / 4][i % 4];
      score = CapShare(score * tanh_scale);
    }
  }
}

// Multiplies the gradients of capped scores by the derivative of tanh. Its value, which no register
// has been left for, is found again from the weight and from its query's statistic, which
// statistic_of(m, n, i) returns. A weight of 0 has a gradient of 0, which stays.
template <int kM, int kN, typename StatisticOf>
__device__ __forceinline__ void MultiplyBySlopes(const ScoreFactors& factors,
                                                 const float (&weights)[kM][kN][4],
                                                 StatisticOf statistic_of,
                                                 float (&gradients)[kM][kN][4]) {
  const float inverse = 1.0F / factors.exponent;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float share = (log2f(weights[m][n][i]) + statistic_of(m, n, i)) * inverse;
        gradients[m][n][i] *= fmaxf(TanhDerivative(share), 0.0F);
      }
    }
  }
}

template <int D, int kM>
__device__ __forceinline__ void ScaleGradient(float scale, float (&x)[kM][D / 8][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) x[m][i / 4][i % 4] *= scale;
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

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_TILED_CUH_
