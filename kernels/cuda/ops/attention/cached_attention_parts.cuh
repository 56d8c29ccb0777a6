#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_CACHED_ATTENTION_PARTS_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_CACHED_ATTENTION_PARTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/attention/attention_seen.cuh"
#include "kernels/cuda/ops/attention/cached_attention_kernels.h"
#include "kernels/math.h"

// Code that the kernels of attention with a cache share: what the first leaves for the last, and
// how rotary positions rotate numbers.
namespace stagecoach::kernels {

// Returns the first position that one at `position` sees.
__device__ inline int64_t FirstSeenBy(const CachedAttentionArguments& a, int64_t position) {
  return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

__device__ inline float Capped(const CachedAttentionArguments& a, float score) {
  return a.score_cap * CapShare(score * a.inverse_cap);
}

// The results of a part for a query: its largest score, and the sum of the weights that are
// relative to that.
struct PartStatistics {
  float largest, sum;
};

// The workspace has the statistics (R, H, parts), then weighted sums of values (R, H, parts, D).
struct PartResults {
  __device__ PartResults(const CachedAttentionArguments& a, int64_t parts)
      : statistics(reinterpret_cast<PartStatistics*>(a.workspace)),
        // If there is one part, there is no workspace and none of it is used.
        sums(a.workspace == nullptr ? nullptr : a.workspace + 2 * a.rows * a.heads * parts) {}
  PartStatistics* statistics;
  float* sums;
};

// Returns the scaled cosine and sine of pair i at a position. It computes in double because the angle
// may be large.
__device__ inline float2 TurnOf(const CachedAttentionArguments& a, int64_t position, int64_t i) {
  if (i >= a.turned_pairs) return {1.0F, 0.0F};
  constexpr double kInverseOfPi = 0.3183098861837907;
  const double frequency =
      ScaledFrequency(exp2(static_cast<double>(i) * a.turn_exponent), a.scaling, i);
  double sine, cosine;
  sincospi(static_cast<double>(position) * frequency * kInverseOfPi, &sine, &cosine);
  const double scale = a.scaling.scale;
  return {static_cast<float>(scale * cosine), static_cast<float>(scale * sine)};
}

template <typename T>
__device__ float2 Turned(const T* head, int64_t half, int64_t i, float scale, float2 turn) {
  const float first = scale * ToFloat(head[i]), second = scale * ToFloat(head[half + i]);
  return {first * turn.x - second * turn.y, second * turn.x + first * turn.y};
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_CACHED_ATTENTION_PARTS_CUH_
