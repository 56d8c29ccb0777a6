#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/tile.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_tiled.cuh"

// FlashAttention-2 (Dao 2023), forward. A block has a tile of queries of one head, kM times 16 of
// them in each warp, and walks over tiles of keys from the first to the last that one of its
// queries sees. Exponents are to the base 2.
namespace stagecoach::kernels {
namespace {

template <int D, int kRows, int kKeys, int kWarps>
struct Forward {
  static constexpr int kM = kRows / (16 * kWarps);
  // Queries stay in registers, along with their results and a tile of weights, if there is room:
  // loading them anew for each tile of keys takes a quarter to a half as long as loading the keys.
  static constexpr bool kHoldsQueries = kM * (D / 2 + kKeys / 2 + D / 4) <= 170;
  static constexpr unsigned kQueryBytes = kRows * TileRows<D>::kBytes;
  static constexpr unsigned kKeyBytes = kKeys * TileRows<D>::kBytes;
  static constexpr unsigned kSharedBytes = kQueryBytes + 2 * 2 * kKeyBytes;
  static constexpr unsigned kBoundBytes = kRows * sizeof(int);  // if it is restricted
  static_assert(kRows <= kWarps * 32);
};

// Weights are relative to a base, which is one of the row's largest exponents so far: it follows
// when another exceeds it by more than this, which rarely happens after the first tile. So sums are
// rarely rescaled to another base, and weights are less than 2^8, which costs no accuracy.
constexpr float kSlack = 8;

template <int D, int kRows, int kKeys, int kWarps, bool kRestricted>
__global__ void __launch_bounds__(kWarps * 32, kTiledWarps / kWarps)
    ForwardKernel(const AttentionArguments args, int tiles) {
  using Shape = Forward<D, kRows, kKeys, kWarps>;
  constexpr int kM = Shape::kM;
  constexpr int kThreads = kWarps * 32;
  const int heads = static_cast<int>(args.heads);
  const BlockPlace place = PlaceOfBlock(tiles, static_cast<int>(args.samples) * heads);
  const int tile = tiles - 1 - place.tile;  // the last tile has the most keys
  const int row = place.row, sample = row / heads, head = row % heads;
  const int kv_head = head / (heads / static_cast<int>(args.kv_heads));
  const int positions = static_cast<int>(args.positions), t0 = tile * kRows;
  const int64_t first_position = int64_t{sample} * positions;
  const __nv_bfloat16* const k = RowOf<D>(args.k, first_position, kv_head);
  const __nv_bfloat16* const v = RowOf<D>(args.v, first_position, kv_head);

  unsigned char* const queries = SharedMemory<unsigned char>();
  unsigned char* const keys = queries + Shape::kQueryBytes;
  const int last_query = min(t0 + kRows, positions) - 1;
  const int key_tiles = last_query / kKeys + 1;
  const int first_tile = kRestricted ? FirstSeenBy(args, sample, t0) / kKeys : 0;
  const auto stage_of = [&](int j) { return keys + j % 2 * 2 * Shape::kKeyBytes; };
  const auto copy_keys = [&](int j) {
    const int u0 = j * kKeys, rows = positions - u0;
    CopyTile<D, kKeys, kThreads>(stage_of(j), k + u0 * args.k.stride, args.k.stride, rows);
    CopyTile<D, kKeys, kThreads>(stage_of(j) + Shape::kKeyBytes, v + u0 * args.v.stride,
                                 args.v.stride, rows);
    CommitCopies();
  };
  CopyTile<D, kRows, kThreads>(queries, RowOf<D>(args.q, first_position + t0, head), args.q.stride,
                               positions - t0);
  copy_keys(first_tile);
  // The first key that each row sees.
  int* const bounds = reinterpret_cast<int*>(keys + 2 * 2 * Shape::kKeyBytes);
  if (kRestricted && threadIdx.x < kRows) {
    bounds[threadIdx.x] =
        FirstSeenBy(args, sample, min(t0 + static_cast<int>(threadIdx.x), positions - 1));
  }

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x / 32) * 16 * kM;  // of the warp
  const int first_query = t0 + first_row;
  const int last_of_warp = first_query < positions ? first_query + 16 * kM - 1 : -1;
  unsigned char* const own = queries + first_row * TileRows<D>::kBytes;
  const LaneOfTile<D> lane_of_tile;
  uint32_t held[Shape::kHoldsQueries ? kM : 1][D / 16][4];
  float y[kM][D / 8][4] = {};
  // The base, and the lane's part of the sum of weights relative to it, for the rows lane / 4 and
  // lane / 4 + 8 of each 16.
  float bases[kM][2], sums[kM][2] = {};
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    bases[m][0] = bases[m][1] = -FLT_MAX;  // finite, so that differences are not NaN
  }

  for (int j = first_tile; j < key_tiles; ++j) {
    WaitForCopies<0>();
    __syncthreads();  // all have their tile j, and are done with the previous one
    if (j + 1 < key_tiles) copy_keys(j + 1);
    if constexpr (Shape::kHoldsQueries) {
      if (j == first_tile) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int column = 0; column < D / 16; ++column) {
            LoadMatrices(lane_of_tile.At(own, m, column), held[m][column]);
          }
        }
      }
    }
    const int u0 = j * kKeys;
    // No query of the warp sees them.
    if (u0 > last_of_warp || (kRestricted && u0 + kKeys <= bounds[first_row])) continue;
    const unsigned char* const stage = stage_of(j);
    float weights[kM][kKeys / 8][4] = {};  // scores, until they are weights
    MultiplyByTransposed<D, kM, kKeys>(
        [&](int column, int m, uint32_t(&words)[4]) {
          if constexpr (Shape::kHoldsQueries) {
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = held[m][column][i];
          } else {
            LoadMatrices(lane_of_tile.At(own, m, column), words);
          }
        },
        stage, weights);
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
    float before[kM][2];
    bool grows = false;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float score = -INFINITY;
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
          score = fmaxf(score, weights[m][i / 2][2 * half + i % 2]);
        }
        score = fmaxf(score, FromLane(score, 1));
        score = fmaxf(score, FromLane(score, 2));
        const float exponent = score * args.factors.exponent;
        before[m][half] = bases[m][half];
        if (exponent > bases[m][half] + kSlack) {
          bases[m][half] = exponent;
          grows = true;
        }
      }
    }
    if (__any_sync(kAllLanes, grows ? 1 : 0) != 0) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float fading = exp2f(before[m][half] - bases[m][half]);  // 1 if the base is the
                                                                         // same
          sums[m][half] *= fading;
#pragma unroll
          for (int i = 0; i < D / 4; ++i) y[m][i / 2][2 * half + i % 2] *= fading;
        }
      }
    }
    Words<kM, kKeys> rounded;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
          float& weight = weights[m][i / 2][2 * half + i % 2];
          weight = exp2f(fmaf(weight, args.factors.exponent, -bases[m][half]));
          sums[m][half] += weight;
        }
        RoundRow<kKeys>(weights[m], half, rounded[m]);
      }
    }
    Multiply<D, kM, kKeys>(rounded, stage + Shape::kKeyBytes, y);
  }

#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sums[m][half];
      sum += FromLane(sum, 1);
      sum += FromLane(sum, 2);
      const int t = first_query + 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && t < positions) {
        args.statistics[int64_t{row} * positions + t] =
            bases[m][half] * (1.0F / kLogOfE) + logf(sum);
      }
      const float inverse = __fdividef(1.0F, sum);
#pragma unroll
      for (int i = 0; i < D / 4; ++i) y[m][i / 2][2 * half + i % 2] *= inverse;
    }
  }
  const HeadsOf<void*> out = {args.y, args.heads * D};
  StoreRows<D, kM>(y, own, RowOf<D>(out, first_position + first_query, head), out.stride,
                   positions - first_query);
}

template <int D, int kRows, int kKeys, int kWarps>
cudaError_t LaunchForward(cudaStream_t stream, const AttentionArguments& args) {
  using Shape = Forward<D, kRows, kKeys, kWarps>;
  const int64_t tiles = (args.positions + kRows - 1) / kRows;
  const dim3 grid(static_cast<unsigned>(tiles * args.heads * args.samples));
  if (args.is_restricted()) {
    return Launch(ForwardKernel<D, kRows, kKeys, kWarps, true>, grid, dim3(kWarps * 32),
                  Shape::kSharedBytes + Shape::kBoundBytes, stream, args, static_cast<int>(tiles));
  }
  return Launch(ForwardKernel<D, kRows, kKeys, kWarps, false>, grid, dim3(kWarps * 32),
                Shape::kSharedBytes, stream, args, static_cast<int>(tiles));
}

template <int D, int kRows, int kKeys, int kWarps>
constexpr AttentionTile Entry() {
  using Shape = Forward<D, kRows, kKeys, kWarps>;
  return {.head_size = D,
          .rows = kRows,
          .step = kKeys,
          .warps = kWarps,
          .shared_bytes = Shape::kSharedBytes + Shape::kBoundBytes,
          .launch = &LaunchForward<D, kRows, kKeys, kWarps>};
}

// 128 queries in four warps are 32 per warp: each load of keys and values then serves two products,
// without which shared memory would be slower than the tensor cores. Two such blocks fit on a
// multiprocessor, so that one multiplies while the other computes its exponentials. Numbers at the
// right are registers (nvcc 13.0, sm_90), none of which is spilled within a loop.
constexpr AttentionTile kTiles[] = {
    Entry<64, 128, 64, 4>(),   // 230
    Entry<64, 64, 64, 4>(),    // 144
    Entry<64, 256, 64, 8>(),   // 231
    Entry<64, 128, 128, 4>(),  // 255
    Entry<80, 128, 64, 4>(),   // 236
    Entry<96, 128, 64, 4>(),   // 244
    Entry<128, 128, 64, 4>(),  // 255
    Entry<128, 128, 32, 4>(),  // 238
    Entry<128, 64, 64, 4>(),   // 190
    Entry<128, 256, 64, 8>(),  // 255
};

}  // namespace

std::span<const AttentionTile> AttentionForwardTiles() { return kTiles; }

bool FitsAttentionTiles(ElementType type, const AttentionArguments& args) {
  const auto fits = [](const auto& tensor) {
    return AlignedForVectors(tensor.data) && tensor.stride % kVectorWidth<__nv_bfloat16> == 0;
  };
  const auto is_one = [&](const AttentionTile& tile) { return tile.head_size == args.head_size; };
  return type == ElementType::kBfloat16 &&
         std::any_of(std::begin(kTiles), std::end(kTiles), is_one) && fits(args.q) &&
         fits(args.k) && fits(args.v) && fits(args.dq) && fits(args.dk) && fits(args.dv) &&
         AlignedForVectors(args.y, args.dy, args.turns);
}

}  // namespace stagecoach::kernels
