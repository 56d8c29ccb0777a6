#include <cuda_runtime.h>

#include <cfloat>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_plain.cuh"

namespace stagecoach::kernels {
namespace plain_attention {
namespace {

constexpr float kLn2 = 0.693147181F;

// Reduces over the lanes that share a row.
__device__ inline float RowLargest(float value) {
#pragma unroll
  for (int distance = kAcross / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, FromLane(value, distance));
  }
  return value;
}
__device__ inline float RowSum(float value) {
#pragma unroll
  for (int distance = kAcross / 2; distance > 0; distance /= 2) value += FromLane(value, distance);
  return value;
}

// Numbers for the rows that a thread has a part of: the largest exponent so far, and the sum of the
// weights, relative to it, of the columns that the thread has had.
template <int W>
struct OnlineSoftmax {
  __device__ OnlineSoftmax() {
#pragma unroll
    for (int i = 0; i < Tile<W>::kRows; ++i) {
      largest[i] = -FLT_MAX;  // finite, so that differences are not NaN where none is seen yet
      total[i] = 0.0F;
    }
  }
  float largest[Tile<W>::kRows], total[Tile<W>::kRows];
};

// Computes the online softmax (Milakov & Gimelshein 2018): scores of queries from `begin` and keys
// from `first` on become weights, powers of 2, and `sums` their sums. `seen_by` returns the first
// key that a query sees, if kRestricted.
template <int W, bool kRestricted, typename SeenBy>
__device__ void Softmax(const PlainArguments& args, const Lane& lane, int begin, int first,
                        SeenBy seen_by, Scores<W>& scores, OnlineSoftmax<W>& online,
                        Sums<W>& sums) {
  const ScoreFactors& factors = args.tensors.factors;
  const bool masks = first + Tile<W>::kOthers > begin;
  if (kRestricted && factors.cap > 0.0F) Cap<W>(factors.tanh_scale, scores);
#pragma unroll
  for (int i = 0; i < Tile<W>::kRows; ++i) {
    const int query = begin + lane.row + i * kDown;
    const int first_seen = kRestricted ? seen_by(query) : 0;
    float largest = online.largest[i];
#pragma unroll
    for (int j = 0; j < Tile<W>::kColumns; ++j) {
      const int key = first + lane.column + j * kAcross;
      scores[i][j] *= factors.exponent;
      if (masks && key > query) scores[i][j] = -INFINITY;
      if (kRestricted && key < first_seen) scores[i][j] = -INFINITY;
      largest = fmaxf(largest, scores[i][j]);
    }
    largest = RowLargest(largest);
    const float correction = exp2f(online.largest[i] - largest);
    online.largest[i] = largest;
    online.total[i] *= correction;
#pragma unroll
    for (int j = 0; j < Tile<W>::kColumns; ++j) {
      scores[i][j] = exp2f(scores[i][j] - largest);
      online.total[i] += scores[i][j];
    }
#pragma unroll
    for (int c = 0; c < Tile<W>::kShare; ++c) sums[i][c] *= correction;
  }
}

template <typename T, int W, bool kRestricted>
__global__ void __launch_bounds__(Tile<W>::kThreads, Tile<W>::kBlocks)
    ForwardKernel(const PlainArguments args) {
  using Layout = Tile<W>;
  const AttentionArguments& a = args.tensors;
  const Work work(a, a.heads);
  const Lane lane = Lane::Of(Layout());
  const int64_t kv_head = work.h / (a.heads / a.kv_heads);
  const auto q = RowsOf<const T>(a.q, a, work.b, work.h);
  const auto k = RowsOf<const T>(a.k, a, work.b, kv_head);
  const auto v = RowsOf<const T>(a.v, a, work.b, kv_head);
  // The last tile, which has the most keys, comes first.
  const int begin = (work.last_tile - work.tile) * kOwn;
  const int positions = static_cast<int>(a.positions);
  const bool has_rows = begin + lane.warp_row < positions;
  const int end = begin + kOwn < positions ? begin + kOwn : positions;

  float* const queries = SharedMemory<float>();
  float* const keys = queries + Layout::kOwnFloats;
  float* const values = keys + Layout::kOtherFloats;
  float* const weights = keys;  // once the scores are computed

  const Slice<W> own_slice(args, work.slice);
  const auto seen_by = [&](int query) { return FirstSeenBy(a, work.b, min(query, positions - 1)); };
  const int first_tile = kRestricted ? seen_by(begin) / Layout::kOthers * Layout::kOthers : 0;
  Sums<W> sums = {};
  OnlineSoftmax<W> online;
  for (int first = first_tile; first < end; first += Layout::kOthers) {
    Scores<W> scores = {};
    for (int s = 0; s < args.slices; ++s) {
      const Slice<W> slice(args, s);
      __syncthreads();  // the old contents have been read
      if (first == first_tile || args.slices > 1) CopyOwn(args, q, begin, slice, queries);
      CopyOthers(args, k, first, slice, keys);
      if (s == 0) CopyOthers(args, v, first, own_slice, values);
      __syncthreads();
      if (has_rows) AddProducts(slice, lane, queries, keys, scores);
    }
    if (has_rows) Softmax<W, kRestricted>(args, lane, begin, first, seen_by, scores, online, sums);
    __syncthreads();  // all have their scores
    if (has_rows) AddWeighted<W>(lane, scores, values, Count<W>(first, end), weights, sums);
  }
  const auto y = RowsOf<T>(a.y, a, work.b, work.h);
  float* const statistics = a.statistics + (work.b * a.heads + work.h) * a.positions;
#pragma unroll
  for (int i = 0; i < Layout::kRows; ++i) {
    const int query = begin + lane.row + i * kDown;
    const float row_total = RowSum(online.total[i]);
    if (query >= positions) continue;
    StoreRow<W>(args, work.slice, lane, 1.0F / row_total, sums[i], nullptr, y.row(query));
    if (work.slice == 0 && lane.column == 0) {
      statistics[query] = (online.largest[i] + log2f(row_total)) * kLn2;
    }
  }
}

template <int W>
constexpr size_t kForwardBytes = sizeof(float) * (Tile<W>::kOwnFloats + 2 * Tile<W>::kOtherFloats);

cudaError_t LaunchForward(cudaStream_t stream, ElementType type, const AttentionArguments& a) {
  return Dispatch(type, a, [&](auto element, auto width, auto restricted) {
    using T = decltype(element);
    constexpr int W = decltype(width)::value;
    const PlainArguments args = ArgumentsOf(a, sizeof(T), W);
    return Launch(ForwardKernel<T, W, decltype(restricted)::value>, GridOf(a, a.heads, args.slices),
                  dim3(Tile<W>::kThreads), kForwardBytes<W>, stream, args);
  });
}

}  // namespace
}  // namespace plain_attention

cudaError_t LaunchPlainAttentionForward(cudaStream_t stream, ElementType type,
                                        const AttentionArguments& a) {
  return plain_attention::LaunchForward(stream, type, a);
}

}  // namespace stagecoach::kernels
