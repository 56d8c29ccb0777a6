#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/tile.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_tiled.cuh"
#include "kernels/cuda/ops/attention/attention_warpgroup.cuh"

// The gradients as in attention_tiled_backward.cu, where everything before a position is seen, by
// products of warpgroups. These run while the threads compute exponentials; so that they also do
// at the end of a step, there are three stages: the products of a step end in the next one, and
// what they read is overwritten in the one after that. With two stages each step waits for its own,
// and several blocks of a multiprocessor take turns.
namespace stagecoach::kernels {
namespace {

// ---- dk, dv. A warpgroup has 64 keys. Scores are transposed, so that weights can directly be the
// first factor of dv.

template <int D, int kGroups, int kQueries, int kStages>
struct OfWarpgroupKeys {
  static constexpr int kKeys = kGroups * kWarpgroupRows;
  static constexpr unsigned kKeyBytes = PanelBytes<D>(kKeys);
  static constexpr unsigned kQueryBytes = PanelBytes<D>(kQueries);
  static constexpr unsigned kSharedBytes =
      kPanelAlignment + 2 * kKeyBytes +
      kStages * (2 * kQueryBytes + 2 * kQueries * unsigned{sizeof(float)});
  static_assert(kStages == 2 || kStages == 3);
  static_assert(kQueries <= kGroups * kWarpgroup);
};

template <int D, int kGroups, int kQueries, int kStages, int kBlocks>
__global__ void __launch_bounds__(kGroups* kWarpgroup, kBlocks)
    WarpgroupKeyKernel(const AttentionArguments args, int key_tiles) {
  using Shape = OfWarpgroupKeys<D, kGroups, kQueries, kStages>;
  constexpr int kThreads = kGroups * kWarpgroup;
  constexpr bool kEndsInNextStep = kStages == 3;
  const int kv_heads = static_cast<int>(args.kv_heads);
  const BlockPlace place = PlaceOfBlock(key_tiles, static_cast<int>(args.samples) * kv_heads);
  const int u0 = place.tile * Shape::kKeys;
  const int sample = place.row / kv_heads, kv_head = place.row % kv_heads;
  const int group = static_cast<int>(args.heads) / kv_heads;
  const int positions = static_cast<int>(args.positions);
  const int64_t first_position = int64_t{sample} * positions;

  unsigned char* const keys = SharedPanels();
  unsigned char* const values = keys + Shape::kKeyBytes;
  unsigned char* const stages = values + Shape::kKeyBytes;
  // Per stage, those of its queries.
  auto* const statistics = reinterpret_cast<float*>(stages + kStages * 2 * Shape::kQueryBytes);
  float* const row_sums = statistics + kStages * kQueries;
  const HeadsOf<const void*> dy = {args.dy, args.heads * D};

  // A step is one tile of queries of one head.
  const int first_query = u0 / kQueries * kQueries;
  const int last_head = (kv_head + 1) * group - 1;
  const auto copy_queries = [&](int head, int t0, int stage) {
    unsigned char* const to = stages + stage * 2 * Shape::kQueryBytes;
    CopyPanels<D, kQueries, kThreads>(to, RowOf<D>(args.q, first_position + t0, head),
                                      args.q.stride, positions - t0);
    CopyPanels<D, kQueries, kThreads>(to + Shape::kQueryBytes,
                                      RowOf<D>(dy, first_position + t0, head), dy.stride,
                                      positions - t0);
    CommitCopies();
  };
  const auto read_of_query = [&](int head, int t0) {
    if (threadIdx.x >= kQueries) return OfQuery();
    return ReadOfQuery(args, sample * args.heads + head, t0 + static_cast<int>(threadIdx.x));
  };
  const auto keep_of_query = [&](OfQuery of_query, int stage) {
    if (threadIdx.x >= kQueries) return;
    statistics[stage * kQueries + threadIdx.x] = of_query.statistic;
    row_sums[stage * kQueries + threadIdx.x] = of_query.row_sum;
  };
  CopyPanels<D, Shape::kKeys, kThreads>(keys, RowOf<D>(args.k, first_position + u0, kv_head),
                                        args.k.stride, positions - u0);
  CopyPanels<D, Shape::kKeys, kThreads>(values, RowOf<D>(args.v, first_position + u0, kv_head),
                                        args.v.stride, positions - u0);
  copy_queries(kv_head * group, first_query, 0);
  keep_of_query(read_of_query(kv_head * group, first_query), 0);

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_of_group = WarpgroupOfBlock() * kWarpgroupRows;
  const int first_row = static_cast<int>(threadIdx.x / 32) * 16;  // of the warp
  const uint64_t own_keys = FactorIn<Shape::kKeys>(keys + first_of_group * kPanelRowBytes);
  const uint64_t own_values = FactorIn<Shape::kKeys>(values + first_of_group * kPanelRowBytes);
  float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
  Words<1, kQueries> rounded_weights, rounded_gradients;
  int next_head = kv_head * group, next_query = first_query;
  int stage = 0;
  // There is at least one step, and the code says so: registers that products under way write must
  // not meet those that are 0 for lack of a step, or the compiler waits for each product.
  do {
    WaitForCopies<0>();
    ShowToProducts();
    __syncthreads();  // all have this step's queries, and have started the last step's products
    const int t0 = next_query;
    next_query += kQueries;
    if (next_query >= positions) {
      next_query = first_query;
      ++next_head;
    }
    const int next_stage = stage + 1 < kStages ? stage + 1 : 0;
    OfQuery next;
    if (next_head <= last_head) {
      copy_queries(next_head, next_query, next_stage);
      next = read_of_query(next_head, next_query);
    }
    // Otherwise no query sees a key of the warpgroup.
    if (u0 + first_of_group < min(t0 + kQueries, positions)) {
      const uint64_t q = FactorIn<kQueries>(stages + stage * 2 * Shape::kQueryBytes);
      const uint64_t dys = FactorIn<kQueries>(stages + (stage * 2 + 1) * Shape::kQueryBytes);
      const int first_of_lane = stage * kQueries + lane % 4 * 2;
      float scores[1][kQueries / 8][4], gradients[1][kQueries / 8][4];
      BeginProducts();
      StartTransposedProduct<D, Shape::kKeys, kQueries>(own_keys, q, scores[0]);
      CommitProducts();
      BeginProducts();
      StartTransposedProduct<D, Shape::kKeys, kQueries>(own_values, dys, gradients[0]);
      CommitProducts();
      WaitForProducts<1>();  // for the last step's, too
      Pin(scores[0]);
      float weights[1][kQueries / 8][4];
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
        const float2 pair = *reinterpret_cast<const float2*>(statistics + first_of_lane + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          weights[0][n][i] =
              exp2f(fmaf(scores[0][n][i], args.factors.exponent, i % 2 == 0 ? -pair.x : -pair.y));
        }
      }
      if (u0 + first_of_group + kWarpgroupRows - 1 > t0) {
        MaskLaterKeys<true, kQueries>(weights[0], u0 + first_row, t0, 0.0F);
      }
      Round<1, kQueries>(weights, rounded_weights);
      Pin(rounded_weights[0]);
      Pin(dv[0]);
      BeginProducts();
      StartSum<D, kQueries>(rounded_weights[0], dys, dv[0]);
      CommitProducts();
      WaitForProducts<1>();
      Pin(gradients[0]);
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
        const float2 pair = *reinterpret_cast<const float2*>(row_sums + first_of_lane + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& gradient = gradients[0][n][i];
          gradient = weights[0][n][i] * (gradient - (i % 2 == 0 ? pair.x : pair.y));
        }
      }
      Round<1, kQueries>(gradients, rounded_gradients);
      Pin(rounded_gradients[0]);
      Pin(dk[0]);
      BeginProducts();
      StartSum<D, kQueries>(rounded_gradients[0], q, dk[0]);
      CommitProducts();
      if (!kEndsInNextStep) WaitForProducts<0>();
    } else if (kEndsInNextStep) {
      WaitForProducts<0>();
    }
    if (next_head <= last_head) keep_of_query(next, next_stage);
    stage = next_stage;
  } while (next_head <= last_head);
  WaitForProducts<0>();
  Pin(dk[0]);
  Pin(dv[0]);
  __syncthreads();  // all are done with keys and values

  const int first_key = u0 + first_row, rows = positions - first_key;
  StoreRows<D, 1>(dv, values + first_row * TileRows<D>::kBytes,
                  RowOf<D>(args.dv, first_position + first_key, kv_head), args.dv.stride, rows);
  ScaleGradient<D, 1>(args.factors.scale, dk);
  if (args.turns != nullptr) TurnBack<D, 1>(dk, args.turns, first_key, positions);
  StoreRows<D, 1>(dk, keys + first_row * TileRows<D>::kBytes,
                  RowOf<D>(args.dk, first_position + first_key, kv_head), args.dk.stride, rows);
}

template <int D, int kGroups, int kQueries, int kStages, int kBlocks>
cudaError_t LaunchWarpgroupKeys(cudaStream_t stream, const AttentionArguments& args) {
  using Shape = OfWarpgroupKeys<D, kGroups, kQueries, kStages>;
  const int64_t tiles = (args.positions + Shape::kKeys - 1) / Shape::kKeys;
  return Launch(WarpgroupKeyKernel<D, kGroups, kQueries, kStages, kBlocks>,
                dim3(static_cast<unsigned>(tiles * args.kv_heads * args.samples)),
                dim3(kGroups * kWarpgroup), Shape::kSharedBytes, stream, args,
                static_cast<int>(tiles));
}

// ---- dq. A warpgroup has 64 queries.

template <int D, int kGroups, int kKeys, int kStages>
struct OfWarpgroupQueries {
  static constexpr int kQueries = kGroups * kWarpgroupRows;
  static constexpr unsigned kQueryBytes = PanelBytes<D>(kQueries);
  static constexpr unsigned kKeyBytes = PanelBytes<D>(kKeys);
  static constexpr unsigned kSharedBytes =
      kPanelAlignment + 2 * kQueryBytes + kStages * 2 * kKeyBytes;
  static_assert(kStages == 2 || kStages == 3);
};

template <int D, int kGroups, int kKeys, int kStages, int kBlocks>
__global__ void __launch_bounds__(kGroups* kWarpgroup, kBlocks)
    WarpgroupQueryKernel(const AttentionArguments args, int query_tiles) {
  using Shape = OfWarpgroupQueries<D, kGroups, kKeys, kStages>;
  constexpr int kThreads = kGroups * kWarpgroup;
  constexpr bool kEndsInNextStep = kStages == 3;
  const int heads = static_cast<int>(args.heads);
  const BlockPlace place = PlaceOfBlock(query_tiles, static_cast<int>(args.samples) * heads);
  const int t0 = (query_tiles - 1 - place.tile) * Shape::kQueries;
  const int sample = place.row / heads, head = place.row % heads;
  const int kv_head = head / (heads / static_cast<int>(args.kv_heads));
  const int positions = static_cast<int>(args.positions);
  const int64_t first_position = int64_t{sample} * positions;
  const __nv_bfloat16* const k = RowOf<D>(args.k, first_position, kv_head);
  const __nv_bfloat16* const v = RowOf<D>(args.v, first_position, kv_head);

  unsigned char* const queries = SharedPanels();
  unsigned char* const dys = queries + Shape::kQueryBytes;
  unsigned char* const stages = dys + Shape::kQueryBytes;
  const HeadsOf<const void*> dy = {args.dy, args.heads * D};
  const int key_tiles = (min(t0 + Shape::kQueries, positions) - 1) / kKeys + 1;
  const auto copy_keys = [&](int j, int stage) {
    const int u0 = j * kKeys;
    unsigned char* const to = stages + stage * 2 * Shape::kKeyBytes;
    CopyPanels<D, kKeys, kThreads>(to, k + u0 * args.k.stride, args.k.stride, positions - u0);
    CopyPanels<D, kKeys, kThreads>(to + Shape::kKeyBytes, v + u0 * args.v.stride, args.v.stride,
                                   positions - u0);
    CommitCopies();
  };
  CopyPanels<D, Shape::kQueries, kThreads>(queries, RowOf<D>(args.q, first_position + t0, head),
                                           args.q.stride, positions - t0);
  CopyPanels<D, Shape::kQueries, kThreads>(dys, RowOf<D>(dy, first_position + t0, head), dy.stride,
                                           positions - t0);
  copy_keys(0, 0);

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_of_group = WarpgroupOfBlock() * kWarpgroupRows;
  const int last_of_group =
      t0 + first_of_group < positions ? t0 + first_of_group + kWarpgroupRows - 1 : -1;
  const int first_row = static_cast<int>(threadIdx.x / 32) * 16;  // of the warp
  const uint64_t own_queries = FactorIn<Shape::kQueries>(queries + first_of_group * kPanelRowBytes);
  const uint64_t own_dys = FactorIn<Shape::kQueries>(dys + first_of_group * kPanelRowBytes);
  OfQuery of_query[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    of_query[half] = ReadOfQuery(args, place.row, t0 + first_row + 8 * half + lane / 4);
  }
  float dq[1][D / 8][4] = {};
  Words<1, kKeys> rounded;
  int stage = 0;
  for (int j = 0; j < key_tiles; ++j) {
    WaitForCopies<0>();
    ShowToProducts();
    __syncthreads();  // all have their tile j, and have started the products of the previous one
    const int next_stage = stage + 1 < kStages ? stage + 1 : 0;
    if (j + 1 < key_tiles) copy_keys(j + 1, next_stage);
    const int u0 = j * kKeys;
    // Otherwise no query of the warpgroup sees them.
    if (u0 <= last_of_group) {
      const uint64_t k_tile = FactorIn<kKeys>(stages + stage * 2 * Shape::kKeyBytes);
      const uint64_t v_tile = FactorIn<kKeys>(stages + (stage * 2 + 1) * Shape::kKeyBytes);
      float scores[1][kKeys / 8][4], gradients[1][kKeys / 8][4];
      BeginProducts();
      StartTransposedProduct<D, Shape::kQueries, kKeys>(own_queries, k_tile, scores[0]);
      CommitProducts();
      BeginProducts();
      StartTransposedProduct<D, Shape::kQueries, kKeys>(own_dys, v_tile, gradients[0]);
      CommitProducts();
      WaitForProducts<1>();  // for those of the previous tile, too
      Pin(scores[0]);
      float weights[1][kKeys / 8][4];
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        weights[0][i / 4][i % 4] = exp2f(
            fmaf(scores[0][i / 4][i % 4], args.factors.exponent, -of_query[i % 4 / 2].statistic));
      }
      if (u0 + kKeys - 1 > t0 + first_of_group) {
        MaskLaterKeys<false, kKeys>(weights[0], t0 + first_row, u0, 0.0F);
      }
      WaitForProducts<0>();
      Pin(gradients[0]);
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        float& gradient = gradients[0][i / 4][i % 4];
        gradient = weights[0][i / 4][i % 4] * (gradient - of_query[i % 4 / 2].row_sum);
      }
      Round<1, kKeys>(gradients, rounded);
      Pin(rounded[0]);
      Pin(dq[0]);
      BeginProducts();
      StartSum<D, kKeys>(rounded[0], k_tile, dq[0]);
      CommitProducts();
      if (!kEndsInNextStep) WaitForProducts<0>();
    } else if (kEndsInNextStep) {
      WaitForProducts<0>();
    }
    stage = next_stage;
  }
  WaitForProducts<0>();
  Pin(dq[0]);
  __syncthreads();  // all are done with queries

  ScaleGradient<D, 1>(args.factors.scale, dq);
  if (args.turns != nullptr) TurnBack<D, 1>(dq, args.turns, t0 + first_row, positions);
  StoreRows<D, 1>(dq, queries + first_row * TileRows<D>::kBytes,
                  RowOf<D>(args.dq, first_position + t0 + first_row, head), args.dq.stride,
                  positions - t0 - first_row);
}

template <int D, int kGroups, int kKeys, int kStages, int kBlocks>
cudaError_t LaunchWarpgroupQueries(cudaStream_t stream, const AttentionArguments& args) {
  using Shape = OfWarpgroupQueries<D, kGroups, kKeys, kStages>;
  const int64_t tiles = (args.positions + Shape::kQueries - 1) / Shape::kQueries;
  return Launch(WarpgroupQueryKernel<D, kGroups, kKeys, kStages, kBlocks>,
                dim3(static_cast<unsigned>(tiles * args.heads * args.samples)),
                dim3(kGroups * kWarpgroup), Shape::kSharedBytes, stream, args,
                static_cast<int>(tiles));
}

template <int D, int kGroups, int kQueries, int kStages, int kBlocks>
constexpr AttentionTile WarpgroupKeys() {
  using Shape = OfWarpgroupKeys<D, kGroups, kQueries, kStages>;
  return {.head_size = D,
          .rows = Shape::kKeys,
          .step = kQueries,
          .warps = 4 * kGroups,
          .stages = kStages,
          .shared_bytes = Shape::kSharedBytes,
          .launch = &LaunchWarpgroupKeys<D, kGroups, kQueries, kStages, kBlocks>};
}
template <int D, int kGroups, int kKeys, int kStages, int kBlocks>
constexpr AttentionTile WarpgroupQueries() {
  using Shape = OfWarpgroupQueries<D, kGroups, kKeys, kStages>;
  return {.head_size = D,
          .rows = Shape::kQueries,
          .step = kKeys,
          .warps = 4 * kGroups,
          .stages = kStages,
          .shared_bytes = Shape::kSharedBytes,
          .launch = &LaunchWarpgroupQueries<D, kGroups, kKeys, kStages, kBlocks>};
}

// Numbers at the right are registers (nvcc 13.0, sm_90a), none of which is spilled. (`nvcc -Xptxas -v` also says if products are "serialized": then each waits for the
// one before, because the compiler doubts which registers those under way have.)
constexpr AttentionTile kKeyTiles[] = {
    WarpgroupKeys<64, 1, 64, 3, 2>(),        // 190
    WarpgroupKeys<64, 1, 64, 2, 3>(),        // 164
    WarpgroupKeys<64, 2, 128, 2, 1>(),       // 255
    WarpgroupKeys<128, 2, 64, 3, 1>(),       // 254
    WarpgroupKeys<128, 2, 64, 2, 1>(),       // 246
};
constexpr AttentionTile kQueryTiles[] = {
    WarpgroupQueries<64, 2, 64, 2, 2>(),    // 125
    WarpgroupQueries<64, 2, 128, 3, 1>(),   // 218
    WarpgroupQueries<64, 1, 64, 3, 3>(),    // 138
    WarpgroupQueries<128, 2, 64, 3, 1>(),   // 173
    WarpgroupQueries<128, 2, 128, 2, 1>(),  // 226
    WarpgroupQueries<128, 1, 64, 2, 2>(),   // 163
};

}  // namespace

std::span<const AttentionTile> AttentionKeyTilesOfWarpgroups() { return kKeyTiles; }
std::span<const AttentionTile> AttentionQueryTilesOfWarpgroups() { return kQueryTiles; }

}  // namespace stagecoach::kernels
