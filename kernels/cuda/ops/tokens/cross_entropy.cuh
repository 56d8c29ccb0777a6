#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_CROSS_ENTROPY_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_CROSS_ENTROPY_CUH_

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/element_type.h"
#include "kernels/cuda/device/exponential.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/tokens/loss_kernels.h"

// What the kernels of losses share: which rows count, and the sums over a row of logits.
namespace stagecoach::kernels {

inline constexpr int kRowShare = 32;  // classes of a row that a thread should have
inline constexpr int kNowhere = 0x7FFFFFFF;

// Scratch for the reductions of the two kinds of values: separate, so that they need no barrier in
// between.
struct RowScratch {
  Located located[kMaxWarps];
  float sums[kMaxWarps];
};
static_assert(sizeof(RowScratch) % 16 == 0);  // a row that is kept follows it

__device__ inline Located TeamFirstLargest(Located own, RowScratch* scratch) {
  return TeamReduce(
      own, [](Located a, Located b) { return FirstLargest(a, b); }, scratch->located);
}

// LossTerms counts samples; this returns rows.
__device__ inline int64_t ValidRows(const LossArguments& a) {
  return a.terms->valid_samples * a.positions;
}
__device__ inline float ScaleOfRow(const LossArguments& a) {
  return a.terms->scale / static_cast<float>(a.positions);
}

// Returns whether a row counts: it belongs to a valid sample and has a label.
__device__ inline bool Counts(const LossArguments& a, int64_t r) {
  return r < ValidRows(a) && (a.labels == nullptr || a.labels[r] != kNoLabel);
}

__device__ inline bool IsClass(const LossArguments& a, int label) {
  return label >= 0 && label < a.classes;
}

// What the first pass over a row of logits z finds.
struct RowSums {
  float maximum;  // at least -FLT_MAX
  int largest;    // the first class that has it
  float sum;      // of e^(z - maximum)
};

// Computes the sums over a row, for all threads of its team. The sum of exponentials is computed in
// the same pass as the maximum that they are relative to (Milakov & Gimelshein 2018).
template <typename T, int N, bool kKeep>
__device__ __forceinline__ RowSums SumsOfRow(const TwiceReadRow<T, N, kKeep>& row, int classes,
                                             RowScratch* scratch) {
  Located largest{-INFINITY, kNowhere};
  float maximum = -FLT_MAX;  // finite, so that differences are not NaN
  float sum = 0.0F;
  row.First([&](int c, float(&values)[N]) {
    if (c + N > classes) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (c + i >= classes) values[i] = -INFINITY;
      }
    }
    float most = values[0];
#pragma unroll
    for (int i = 1; i < N; ++i) most = fmaxf(most, values[i]);
    // Some lane of a warp nearly always has a new maximum, so no branch would be saved.
    const bool is_larger = most > largest.value || largest.index == kNowhere;
    largest.value = is_larger ? most : largest.value;
    largest.index = is_larger ? c : largest.index;
    const float before = maximum;
    maximum = fmaxf(maximum, most);
    sum = __fmul_rn(sum, FlushedExp(before - maximum));
#pragma unroll
    for (int i = 0; i < N; ++i) sum = __fadd_rn(sum, FlushedExp(values[i] - maximum));
  });
  if (N > 1 && largest.index != kNowhere) {  // it is that of the vector so far
    float values[N];
    Unpack<T, N>(row.At(largest.index), values);
    const int first = largest.index;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
      if (values[i] == largest.value) largest.index = first + i;
    }
  }
  largest = TeamFirstLargest(largest, scratch);
  const float row_maximum = fmaxf(largest.value, -FLT_MAX);
  sum = TeamSum(__fmul_rn(sum, FlushedExp(maximum - row_maximum)), scratch->sums);
  return {row_maximum, largest.index, sum};
}

// Calls launch(element, width, layout, bytes of a row's vectors) for the rows of a tile.
template <typename LaunchRows>
cudaError_t DispatchTile(ElementType type, const CrossEntropyTile& tile, LaunchRows launch) {
  const LossArguments& a = tile.loss;
  const auto vectors = [&](int width) {
    return tile.leading % width == 0 && AlignedForVectors(a.output, a.gradient);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t count = (a.classes + N - 1) / N;
    const auto bytes = static_cast<size_t>(count) * N * sizeof(element);
    return launch(element, width, LayOutTeams(a.rows, count, kRowShare / N), bytes);
  });
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_CROSS_ENTROPY_CUH_
