#include <cuda_runtime.h>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_plain.cuh"

namespace stagecoach::kernels {
namespace plain_attention {
namespace {

constexpr auto kLog2E = static_cast<float>(kLogOfE);

// Computes dq of the block's queries.
template <typename T, int W, bool kRestricted>
__global__ void __launch_bounds__(Tile<W>::kThreads, Tile<W>::kBlocks)
    BackwardQueriesKernel(const PlainArguments args) {
  using Layout = Tile<W>;
  const AttentionArguments& a = args.tensors;
  const Work work(a, a.heads);
  const Lane lane = Lane::Of(Layout());
  const int64_t kv_head = work.h / (a.heads / a.kv_heads);
  const auto q = RowsOf<const T>(a.q, a, work.b, work.h);
  const auto k = RowsOf<const T>(a.k, a, work.b, kv_head);
  const auto v = RowsOf<const T>(a.v, a, work.b, kv_head);
  const auto dy = RowsOf<const T>(a.dy, a, work.b, work.h);
  const int begin = (work.last_tile - work.tile) * kOwn;
  const int positions = static_cast<int>(a.positions);
  const bool has_rows = begin + lane.warp_row < positions;
  const int end = begin + kOwn < positions ? begin + kOwn : positions;

  float* const queries = SharedMemory<float>();
  float* const gradients = queries + Layout::kOwnFloats;
  float* const keys = gradients + Layout::kOwnFloats;
  float* const values = keys + Layout::kOtherFloats;
  float* const weights = values;  // once the values have been read

  const auto seen_by = [&](int query) { return FirstSeenBy(a, work.b, min(query, positions - 1)); };
  const int first_tile = kRestricted ? seen_by(begin) / Layout::kOthers * Layout::kOthers : 0;
  float exponent[Layout::kRows], row_sum[Layout::kRows];
  const int64_t statistic = (work.b * a.heads + work.h) * a.positions;
#pragma unroll
  for (int i = 0; i < Layout::kRows; ++i) {
    const int query = begin + lane.row + i * kDown;
    exponent[i] = query < positions ? a.statistics[statistic + query] * kLog2E : 0.0F;
    row_sum[i] = query < positions ? a.row_sums[statistic + query] : 0.0F;
  }
  Sums<W> sums = {};
  for (int first = first_tile; first < end; first += Layout::kOthers) {
    Scores<W> scores = {}, products = {};
    for (int s = 0; s < args.slices; ++s) {
      const Slice<W> slice(args, (work.slice + 1 + s) % args.slices);  // the block's own last
      __syncthreads();  // the old contents have been read
      if (first == first_tile || args.slices > 1) {
        CopyOwn(args, q, begin, slice, queries);
        CopyOwn(args, dy, begin, slice, gradients);
      }
      CopyOthers(args, k, first, slice, keys);
      CopyOthers(args, v, first, slice, values);
      __syncthreads();
      if (!has_rows) continue;
      AddProducts(slice, lane, queries, keys, scores);
      AddProducts(slice, lane, gradients, values, products);
    }
    const bool caps = kRestricted && a.factors.cap > 0.0F;
    if (caps) Cap<W>(a.factors.tanh_scale, scores);
#pragma unroll
    for (int i = 0; i < Layout::kRows; ++i) {
      const int query = begin + lane.row + i * kDown;
      const int first_seen = kRestricted ? seen_by(query) : 0;
#pragma unroll
      for (int j = 0; j < Layout::kColumns; ++j) {
        const int key = first + lane.column + j * kAcross;
        const bool sees = key <= query && (!kRestricted || key >= first_seen);
        const float slope = caps ? TanhDerivative(scores[i][j]) : 1.0F;
        const float p = exp2f(scores[i][j] * a.factors.exponent - exponent[i]);
        scores[i][j] = sees ? p * (products[i][j] - row_sum[i]) : 0.0F;
        if (kRestricted) scores[i][j] *= slope;
      }
    }
    __syncthreads();  // all have their products with the values
    if (has_rows) AddWeighted<W>(lane, scores, keys, Count<W>(first, end), weights, sums);
  }
  const auto dq = RowsOf<T>(a.dq, a, work.b, work.h);
#pragma unroll
  for (int i = 0; i < Layout::kRows; ++i) {
    const int query = begin + lane.row + i * kDown;
    if (query >= positions) continue;
    StoreRow<W>(args, work.slice, lane, a.factors.scale, sums[i], TurnsOf(a, query), dq.row(query));
  }
}

// Computes dk and dv of the block's keys, summed over the heads of their group and, for each head,
// over queries, both in order.
template <typename T, int W, bool kRestricted>
__global__ void __launch_bounds__(Tile<W>::kThreads, 2)
    BackwardKeysKernel(const PlainArguments args) {
  using Layout = Tile<W>;
  const AttentionArguments& a = args.tensors;
  const Work work(a, a.kv_heads);
  const Lane lane = Lane::Of(Layout());
  const auto k = RowsOf<const T>(a.k, a, work.b, work.h);
  const auto v = RowsOf<const T>(a.v, a, work.b, work.h);
  const int begin = work.tile * kOwn;  // the first tile, which has the most queries, comes first
  const int positions = static_cast<int>(a.positions);
  const bool has_rows = begin + lane.warp_row < positions;

  float* const keys = SharedMemory<float>();
  float* const values = keys + Layout::kOwnFloats;
  float* const queries = values + Layout::kOwnFloats;
  float* const gradients = queries + Layout::kOtherFloats;
  float* const weights = gradients + Layout::kOtherFloats;
  float* const exponents = weights + Layout::kWeightFloats;
  float* const row_sums = exponents + Layout::kOthers;
  int* const first_seen = reinterpret_cast<int*>(row_sums + Layout::kOthers);

  const int end =
      kRestricted ? EndOfViewers(a, work.b, min(begin + kOwn, positions) - 1) : positions;
  const int64_t group = a.heads / a.kv_heads;
  Sums<W> dk = {}, dv = {};
  for (int64_t h = work.h * group; h < (work.h + 1) * group; ++h) {
    const auto q = RowsOf<const T>(a.q, a, work.b, h);
    const auto dy = RowsOf<const T>(a.dy, a, work.b, h);
    const int64_t statistic = (work.b * a.heads + h) * a.positions;
    for (int first = begin; first < end; first += Layout::kOthers) {
      Scores<W> scores = {}, products = {};
      for (int s = 0; s < args.slices; ++s) {
        const Slice<W> slice(args, (work.slice + 1 + s) % args.slices);  // the block's own last
        __syncthreads();  // the old contents have been read
        if ((h == work.h * group && first == begin) || args.slices > 1) {
          CopyOwn(args, k, begin, slice, keys);
          CopyOwn(args, v, begin, slice, values);
        }
        CopyOthers(args, q, first, slice, queries);
        CopyOthers(args, dy, first, slice, gradients);
        if (s == 0 && threadIdx.x < Layout::kOthers) {
          const int query = first + static_cast<int>(threadIdx.x);
          const bool exists = query < positions;
          exponents[threadIdx.x] = exists ? a.statistics[statistic + query] * kLog2E : 0.0F;
          row_sums[threadIdx.x] = exists ? a.row_sums[statistic + query] : 0.0F;
          if (kRestricted) {
            first_seen[threadIdx.x] = FirstSeenBy(a, work.b, min(query, positions - 1));
          }
        }
        __syncthreads();
        if (!has_rows) continue;
        AddProducts(slice, lane, keys, queries, scores);
        AddProducts(slice, lane, values, gradients, products);
      }
      if (!has_rows) continue;
      const bool caps = kRestricted && a.factors.cap > 0.0F;
      if (caps) Cap<W>(a.factors.tanh_scale, scores);
#pragma unroll
      for (int j = 0; j < Layout::kColumns; ++j) {
        const int column = lane.column + j * kAcross;
        const int query = first + column;
#pragma unroll
        for (int i = 0; i < Layout::kRows; ++i) {
          const int key = begin + lane.row + i * kDown;
          const bool sees =
              key <= query && query < positions && (!kRestricted || key >= first_seen[column]);
          const float slope = caps ? TanhDerivative(scores[i][j]) : 1.0F;
          const float p = exp2f(scores[i][j] * a.factors.exponent - exponents[column]);
          scores[i][j] = sees ? p : 0.0F;
          products[i][j] = sees ? p * (products[i][j] - row_sums[column]) : 0.0F;
          if (kRestricted) products[i][j] *= slope;
        }
      }
      const int count = Count<W>(first, positions);
      AddWeighted<W>(lane, scores, gradients, count, weights, dv);
      AddWeighted<W>(lane, products, queries, count, weights, dk);
    }
  }
  const auto dk_rows = RowsOf<T>(a.dk, a, work.b, work.h);
  const auto dv_rows = RowsOf<T>(a.dv, a, work.b, work.h);
#pragma unroll
  for (int i = 0; i < Layout::kRows; ++i) {
    const int key = begin + lane.row + i * kDown;
    if (key >= positions) continue;
    StoreRow<W>(args, work.slice, lane, a.factors.scale, dk[i], TurnsOf(a, key), dk_rows.row(key));
    StoreRow<W>(args, work.slice, lane, 1.0F, dv[i], nullptr, dv_rows.row(key));
  }
}

cudaError_t LaunchBackward(cudaStream_t stream, ElementType type, const AttentionArguments& a) {
  return Dispatch(type, a, [&](auto element, auto width, auto restricted) {
    using T = decltype(element);
    constexpr int W = decltype(width)::value;
    const PlainArguments args = ArgumentsOf(a, sizeof(T), W);
    constexpr bool kRestricted = decltype(restricted)::value;
    const cudaError_t error =
        Launch(BackwardQueriesKernel<T, W, kRestricted>, GridOf(a, a.heads, args.slices),
               dim3(Tile<W>::kThreads), kQueriesBytes<W>, stream, args);
    if (error != cudaSuccess) return error;
    return Launch(BackwardKeysKernel<T, W, kRestricted>, GridOf(a, a.kv_heads, args.slices),
                  dim3(Tile<W>::kThreads), kKeysBytes<W>, stream, args);
  });
}

}  // namespace
}  // namespace plain_attention

cudaError_t LaunchPlainAttentionBackward(cudaStream_t stream, ElementType type,
                                         const AttentionArguments& a) {
  return plain_attention::LaunchBackward(stream, type, a);
}

}  // namespace stagecoach::kernels
