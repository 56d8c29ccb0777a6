#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/tile.cuh"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_tiled.cuh"

// The gradients, as in FlashAttention-2 but without atomics: dk and dv in one kernel, and dq in
// another that recomputes the weights. With g = p (dy v - dy y), and p from the statistics.
namespace stagecoach::kernels {
namespace {

// ---- dk, dv. A block has a tile of keys of one head, kM times 16 of them in each warp, and walks
// over the tiles of queries that see them: through the group's heads one after the other, from the
// first position on. Scores are transposed, so that weights can directly be the first factor of dv.

template <int D, int kKeys, int kQueries, int kWarps>
struct OfKeys {
  static constexpr int kM = kKeys / (16 * kWarps);
  static constexpr unsigned kKeyBytes = kKeys * TileRows<D>::kBytes;
  static constexpr unsigned kQueryBytes = kQueries * TileRows<D>::kBytes;
  static constexpr unsigned kSharedBytes =
      2 * kKeyBytes + 2 * (2 * kQueryBytes + kQueries * sizeof(OfQuery));
  static constexpr unsigned kBoundBytes = kKeys * sizeof(int);  // if it is restricted
  static_assert(kQueries <= kWarps * 32 && kKeys <= kWarps * 32);
};

template <int D, int kKeys, int kQueries, int kWarps, bool kRestricted>
__global__ void __launch_bounds__(kWarps * 32, kTiledWarps / kWarps)
    KeyKernel(const AttentionArguments args, int key_tiles) {
  using Shape = OfKeys<D, kKeys, kQueries, kWarps>;
  constexpr int kM = Shape::kM;
  constexpr int kThreads = kWarps * 32;
  const int kv_heads = static_cast<int>(args.kv_heads);
  const BlockPlace place = PlaceOfBlock(key_tiles, static_cast<int>(args.samples) * kv_heads);
  const int u0 = place.tile * kKeys;  // the first tile has the most queries
  const int sample = place.row / kv_heads, kv_head = place.row % kv_heads;
  const int group = static_cast<int>(args.heads) / kv_heads;
  const int positions = static_cast<int>(args.positions);
  const int64_t first_position = int64_t{sample} * positions;

  unsigned char* const keys = SharedMemory<unsigned char>();
  unsigned char* const values = keys + Shape::kKeyBytes;
  unsigned char* const stages = values + Shape::kKeyBytes;
  auto* const of_queries = reinterpret_cast<OfQuery*>(stages + 4 * Shape::kQueryBytes);
  const HeadsOf<const void*> dy = {args.dy, args.heads * D};

  // A step is one tile of queries of one head.
  const int first_query = u0 / kQueries * kQueries;
  const int last_head = (kv_head + 1) * group - 1;
  const auto copy_queries = [&](int head, int t0, unsigned parity) {
    unsigned char* const stage = stages + parity * 2 * Shape::kQueryBytes;
    CopyTile<D, kQueries, kThreads>(stage, RowOf<D>(args.q, first_position + t0, head),
                                    args.q.stride, positions - t0);
    CopyTile<D, kQueries, kThreads>(stage + Shape::kQueryBytes,
                                    RowOf<D>(dy, first_position + t0, head), dy.stride,
                                    positions - t0);
    CommitCopies();
  };
  const auto read_of_query = [&](int head, int t0) {
    if (threadIdx.x >= kQueries) return OfQuery();
    return ReadOfQuery(args, sample * args.heads + head, t0 + static_cast<int>(threadIdx.x));
  };
  const auto keep_of_query = [&](OfQuery of_query, unsigned parity) {
    if (threadIdx.x < kQueries) of_queries[parity * kQueries + threadIdx.x] = of_query;
  };
  CopyTile<D, kKeys, kThreads>(keys, RowOf<D>(args.k, first_position + u0, kv_head), args.k.stride,
                               positions - u0);
  CopyTile<D, kKeys, kThreads>(values, RowOf<D>(args.v, first_position + u0, kv_head),
                               args.v.stride, positions - u0);
  copy_queries(kv_head * group, first_query, 0);
  keep_of_query(read_of_query(kv_head * group, first_query), 0);
  // The end of the queries that see each key.
  int* const bounds = reinterpret_cast<int*>(of_queries + 2 * kQueries);
  if (kRestricted && threadIdx.x < kKeys) {
    bounds[threadIdx.x] =
        EndOfViewers(args, sample, min(u0 + static_cast<int>(threadIdx.x), positions - 1));
  }

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x / 32) * 16 * kM;  // of the warp
  const int first_key = u0 + first_row;
  unsigned char* const own_keys = keys + first_row * TileRows<D>::kBytes;
  unsigned char* const own_values = values + first_row * TileRows<D>::kBytes;
  const LaneOfTile<D> lane_of_tile;
  float dk[kM][D / 8][4] = {}, dv[kM][D / 8][4] = {};
  int next_head = kv_head * group, next_query = first_query;
  for (unsigned parity = 0; next_head <= last_head; parity ^= 1) {
    WaitForCopies<0>();
    __syncthreads();  // all have this step's queries, and are done with the previous step's
    const int t0 = next_query;
    next_query += kQueries;
    if (next_query >= (kRestricted ? bounds[kKeys - 1] : positions)) {
      next_query = first_query;
      ++next_head;
    }
    OfQuery next;
    if (next_head <= last_head) {
      copy_queries(next_head, next_query, parity ^ 1);
      next = read_of_query(next_head, next_query);
    }
    const unsigned char* const q_tile = stages + parity * 2 * Shape::kQueryBytes;
    const unsigned char* const dy_tile = q_tile + Shape::kQueryBytes;
    const OfQuery* const of_query = of_queries + parity * kQueries + lane % 4 * 2;
    // Otherwise no query sees a key of the warp.
    if (first_key < min(t0 + kQueries, positions) &&
        (!kRestricted || t0 < bounds[first_row + 16 * kM - 1])) {
      float weights[kM][kQueries / 8][4] = {};
      MultiplyByTransposed<D, kM, kQueries>(
          [&](int column, int m, uint32_t(&words)[4]) {
            LoadMatrices(lane_of_tile.At(own_keys, m, column), words);
          },
          q_tile, weights);
      if (kRestricted && args.factors.cap > 0.0F) Cap(args.factors.tanh_scale, weights);
      if (first_key + 16 * kM - 1 > t0) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          MaskLaterKeys<true, kQueries>(weights[m], first_key + 16 * m, t0);
        }
      }
      if (kRestricted && t0 + kQueries > bounds[first_row]) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          MaskBeyondBounds<true, kQueries>(weights[m], bounds + first_row + 16 * m, t0);
        }
      }
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float statistic = of_query[8 * n + i].statistic;
#pragma unroll
          for (int row = 0; row < 2 * kM; ++row) {
            float& weight = weights[row / 2][n][row % 2 * 2 + i];
            weight = exp2f(fmaf(weight, args.factors.exponent, -statistic));
          }
        }
      }
      Words<kM, kQueries> rounded;
      Round<kM, kQueries>(weights, rounded);
      Multiply<D, kM, kQueries>(rounded, dy_tile, dv);
      float gradients[kM][kQueries / 8][4] = {};
      MultiplyByTransposed<D, kM, kQueries>(
          [&](int column, int m, uint32_t(&words)[4]) {
            LoadMatrices(lane_of_tile.At(own_values, m, column), words);
          },
          dy_tile, gradients);
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float row_sum = of_query[8 * n + i].row_sum;
#pragma unroll
          for (int row = 0; row < 2 * kM; ++row) {
            float& gradient = gradients[row / 2][n][row % 2 * 2 + i];
            gradient = weights[row / 2][n][row % 2 * 2 + i] * (gradient - row_sum);
          }
        }
      }
      if (kRestricted && args.factors.cap > 0.0F) {
        MultiplyBySlopes(
            args.factors, weights,
            [&](int /*m*/, int n, int i) { return of_query[8 * n + i % 2].statistic; }, gradients);
      }
      Round<kM, kQueries>(gradients, rounded);
      Multiply<D, kM, kQueries>(rounded, q_tile, dk);
    }
    if (next_head <= last_head) keep_of_query(next, parity ^ 1);
  }

  const int rows = positions - first_key;
  StoreRows<D, kM>(dv, own_values, RowOf<D>(args.dv, first_position + first_key, kv_head),
                   args.dv.stride, rows);
  ScaleGradient<D, kM>(args.factors.scale, dk);
  if (args.turns != nullptr) TurnBack<D, kM>(dk, args.turns, first_key, positions);
  StoreRows<D, kM>(dk, own_keys, RowOf<D>(args.dk, first_position + first_key, kv_head),
                   args.dk.stride, rows);
}

template <int D, int kKeys, int kQueries, int kWarps>
cudaError_t LaunchKeys(cudaStream_t stream, const AttentionArguments& args) {
  const int64_t tiles = (args.positions + kKeys - 1) / kKeys;
  using Shape = OfKeys<D, kKeys, kQueries, kWarps>;
  const dim3 grid(static_cast<unsigned>(tiles * args.kv_heads * args.samples));
  if (args.is_restricted()) {
    return Launch(KeyKernel<D, kKeys, kQueries, kWarps, true>, grid, dim3(kWarps * 32),
                  Shape::kSharedBytes + Shape::kBoundBytes, stream, args, static_cast<int>(tiles));
  }
  return Launch(KeyKernel<D, kKeys, kQueries, kWarps, false>, grid, dim3(kWarps * 32),
                Shape::kSharedBytes, stream, args, static_cast<int>(tiles));
}

// ---- dq. A block has a tile of queries of one head, and walks over the tiles of keys that they
// see, from the first position on.

template <int D, int kQueries, int kKeys, int kWarps>
struct OfQueries {
  static constexpr int kM = kQueries / (16 * kWarps);
  static constexpr unsigned kQueryBytes = kQueries * TileRows<D>::kBytes;
  static constexpr unsigned kKeyBytes = kKeys * TileRows<D>::kBytes;
  static constexpr unsigned kSharedBytes = 2 * kQueryBytes + 4 * kKeyBytes;
  static constexpr unsigned kBoundBytes = kQueries * sizeof(int);  // if it is restricted
  static_assert(kQueries <= kWarps * 32);
};

template <int D, int kQueries, int kKeys, int kWarps, bool kRestricted>
__global__ void __launch_bounds__(kWarps * 32, kTiledWarps / kWarps)
    QueryKernel(const AttentionArguments args, int query_tiles) {
  using Shape = OfQueries<D, kQueries, kKeys, kWarps>;
  constexpr int kM = Shape::kM;
  constexpr int kThreads = kWarps * 32;
  const int heads = static_cast<int>(args.heads);
  const BlockPlace place = PlaceOfBlock(query_tiles, static_cast<int>(args.samples) * heads);
  const int t0 = (query_tiles - 1 - place.tile) * kQueries;  // the last tile has the most keys
  const int row = place.row, sample = row / heads, head = row % heads;
  const int kv_head = head / (heads / static_cast<int>(args.kv_heads));
  const int positions = static_cast<int>(args.positions);
  const int64_t first_position = int64_t{sample} * positions;
  const __nv_bfloat16* const k = RowOf<D>(args.k, first_position, kv_head);
  const __nv_bfloat16* const v = RowOf<D>(args.v, first_position, kv_head);

  unsigned char* const queries = SharedMemory<unsigned char>();
  unsigned char* const dys = queries + Shape::kQueryBytes;
  unsigned char* const stages = dys + Shape::kQueryBytes;
  const HeadsOf<const void*> dy = {args.dy, args.heads * D};
  const int key_tiles = (min(t0 + kQueries, positions) - 1) / kKeys + 1;
  const int first_tile = kRestricted ? FirstSeenBy(args, sample, t0) / kKeys : 0;
  const auto copy_keys = [&](int j) {
    const int u0 = j * kKeys;
    unsigned char* const stage = stages + j % 2 * 2 * Shape::kKeyBytes;
    CopyTile<D, kKeys, kThreads>(stage, k + u0 * args.k.stride, args.k.stride, positions - u0);
    CopyTile<D, kKeys, kThreads>(stage + Shape::kKeyBytes, v + u0 * args.v.stride, args.v.stride,
                                 positions - u0);
    CommitCopies();
  };
  CopyTile<D, kQueries, kThreads>(queries, RowOf<D>(args.q, first_position + t0, head),
                                  args.q.stride, positions - t0);
  CopyTile<D, kQueries, kThreads>(dys, RowOf<D>(dy, first_position + t0, head), dy.stride,
                                  positions - t0);
  copy_keys(first_tile);
  // The first key that each query sees.
  int* const bounds = reinterpret_cast<int*>(stages + 4 * Shape::kKeyBytes);
  if (kRestricted && threadIdx.x < kQueries) {
    bounds[threadIdx.x] =
        FirstSeenBy(args, sample, min(t0 + static_cast<int>(threadIdx.x), positions - 1));
  }

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x / 32) * 16 * kM;  // of the warp
  const int first_query = t0 + first_row;
  const int last_of_warp = first_query < positions ? first_query + 16 * kM - 1 : -1;
  unsigned char* const own_queries = queries + first_row * TileRows<D>::kBytes;
  const unsigned char* const own_dys = dys + first_row * TileRows<D>::kBytes;
  const LaneOfTile<D> lane_of_tile;
  OfQuery of_query[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of_query[m][half] = ReadOfQuery(args, row, first_query + 16 * m + 8 * half + lane / 4);
    }
  }
  float dq[kM][D / 8][4] = {};
  for (int j = first_tile; j < key_tiles; ++j) {
    WaitForCopies<0>();
    __syncthreads();  // all have their tile j, and are done with the previous one
    if (j + 1 < key_tiles) copy_keys(j + 1);
    const int u0 = j * kKeys;
    // No query of the warp sees them.
    if (u0 > last_of_warp || (kRestricted && u0 + kKeys <= bounds[first_row])) continue;
    const unsigned char* const k_tile = stages + j % 2 * 2 * Shape::kKeyBytes;
    const unsigned char* const v_tile = k_tile + Shape::kKeyBytes;
    float weights[kM][kKeys / 8][4] = {};
    MultiplyByTransposed<D, kM, kKeys>(
        [&](int column, int m, uint32_t(&words)[4]) {
          LoadMatrices(lane_of_tile.At(own_queries, m, column), words);
        },
        k_tile, weights);
    if (kRestricted && args.factors.cap > 0.0F) Cap(args.factors.tanh_scale, weights);
    if (u0 + kKeys - 1 > first_query) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        MaskLaterKeys<false, kKeys>(weights[m], first_query + 16 * m, u0);
      }
    }
    if (kRestricted && u0 < bounds[first_row + 16 * kM - 1]) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        MaskBeyondBounds<false, kKeys>(weights[m], bounds + first_row + 16 * m, u0);
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        float& weight = weights[m][i / 4][i % 4];
        weight = exp2f(fmaf(weight, args.factors.exponent, -of_query[m][i % 4 / 2].statistic));
      }
    }
    float gradients[kM][kKeys / 8][4] = {};
    MultiplyByTransposed<D, kM, kKeys>(
        [&](int column, int m, uint32_t(&words)[4]) {
          LoadMatrices(lane_of_tile.At(own_dys, m, column), words);
        },
        v_tile, gradients);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        float& gradient = gradients[m][i / 4][i % 4];
        gradient = weights[m][i / 4][i % 4] * (gradient - of_query[m][i % 4 / 2].row_sum);
      }
    }
    if (kRestricted && args.factors.cap > 0.0F) {
      MultiplyBySlopes(
          args.factors, weights,
          [&](int m, int /*n*/, int i) { return of_query[m][i / 2].statistic; }, gradients);
    }
    Words<kM, kKeys> rounded;
    Round<kM, kKeys>(gradients, rounded);
    Multiply<D, kM, kKeys>(rounded, k_tile, dq);
  }

  ScaleGradient<D, kM>(args.factors.scale, dq);
  if (args.turns != nullptr) TurnBack<D, kM>(dq, args.turns, first_query, positions);
  StoreRows<D, kM>(dq, own_queries, RowOf<D>(args.dq, first_position + first_query, head),
                   args.dq.stride, positions - first_query);
}

template <int D, int kQueries, int kKeys, int kWarps>
cudaError_t LaunchQueries(cudaStream_t stream, const AttentionArguments& args) {
  const int64_t tiles = (args.positions + kQueries - 1) / kQueries;
  using Shape = OfQueries<D, kQueries, kKeys, kWarps>;
  const dim3 grid(static_cast<unsigned>(tiles * args.heads * args.samples));
  if (args.is_restricted()) {
    return Launch(QueryKernel<D, kQueries, kKeys, kWarps, true>, grid, dim3(kWarps * 32),
                  Shape::kSharedBytes + Shape::kBoundBytes, stream, args, static_cast<int>(tiles));
  }
  return Launch(QueryKernel<D, kQueries, kKeys, kWarps, false>, grid, dim3(kWarps * 32),
                Shape::kSharedBytes, stream, args, static_cast<int>(tiles));
}

template <int D, int kKeys, int kQueries, int kWarps>
constexpr AttentionTile Keys() {
  using Shape = OfKeys<D, kKeys, kQueries, kWarps>;
  return {.head_size = D,
          .rows = kKeys,
          .step = kQueries,
          .warps = kWarps,
          .shared_bytes = Shape::kSharedBytes + Shape::kBoundBytes,
          .launch = &LaunchKeys<D, kKeys, kQueries, kWarps>};
}
template <int D, int kQueries, int kKeys, int kWarps>
constexpr AttentionTile Queries() {
  using Shape = OfQueries<D, kQueries, kKeys, kWarps>;
  return {.head_size = D,
          .rows = kQueries,
          .step = kKeys,
          .warps = kWarps,
          .shared_bytes = Shape::kSharedBytes + Shape::kBoundBytes,
          .launch = &LaunchQueries<D, kQueries, kKeys, kWarps>};
}

// A warp has as many rows as the registers of its sums leave room for: dk and dv of 32 keys with 64
// numbers, of 16 with more; dq of 32 queries. Numbers at the right are registers (nvcc 13.0,
// sm_90).
constexpr AttentionTile kKeyTiles[] = {
    Keys<64, 128, 32, 4>(),   // 255
    Keys<64, 64, 64, 4>(),    // 203
    Keys<64, 128, 64, 8>(),   // 205
    Keys<80, 64, 64, 4>(),    // 224
    Keys<96, 64, 64, 4>(),    // 246
    Keys<128, 64, 64, 4>(),   // 255
    Keys<128, 128, 64, 8>(),  // 255
};
constexpr AttentionTile kQueryTiles[] = {
    Queries<64, 128, 64, 4>(),   // 255
    Queries<64, 64, 64, 4>(),    // 163
    Queries<64, 128, 32, 4>(),   // 203
    Queries<80, 128, 32, 4>(),   // 220
    Queries<96, 128, 32, 4>(),   // 237
    Queries<128, 128, 32, 4>(),  // 255
    Queries<128, 64, 64, 4>(),   // 202
};

}  // namespace

std::span<const AttentionTile> AttentionKeyTiles() { return kKeyTiles; }
std::span<const AttentionTile> AttentionQueryTiles() { return kQueryTiles; }

}  // namespace stagecoach::kernels
