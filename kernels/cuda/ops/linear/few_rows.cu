#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/cluster_launch.cuh"
#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/tile.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/linear/few_rows_kernels.h"
#include "kernels/cuda/ops/linear/input_norm.cuh"

// Products of tensor_core.cuh with a = w^T and b = x^T, so that c has 16 columns of y and all of
// its rows. The order of columns and inputs in a and b is free, as long as both agree. With g =
// lane / 4 and m = lane % 4, a lane has kColumns / 8 neighboring columns, starting at g times that,
// of the inputs 8 m to 8 m + 7 of each chunk: it loads both as they lie in memory.
namespace stagecoach::kernels {
namespace {

constexpr int kChunk = 32;  // inputs
constexpr int kRows = static_cast<int>(kFewRows);

template <int kColumns>
struct Strip {
  static constexpr int kOwn = kColumns / 8;  // columns of a lane
  static constexpr int kPairs = kOwn / 2;
  static constexpr int kChunks = 4 / kPairs;  // whose words are in flight at a time: 32 per lane

  // Neighboring columns of an input, in pairs.
  struct alignas(2 * kOwn) Words {
    uint32_t pairs[kPairs];
  };
  struct Chunk {
    Words w[8];
    uint32_t x[4];
  };

  // Returns the place of a sum in the shared memory of its warp: lanes that store at once touch
  // each bank once.
  static __device__ int PlaceOf(int row, int column) {
    const int m = row / 2;
    const int exchange = kColumns == 64   ? 2 * m
                         : kColumns == 32 ? 2 * (m % 2) + 16 * (m / 2)
                                          : 8 * (m / 2);
    return (row % 2 * (kRows / 2) + m) * kColumns + (column ^ exchange);
  }
};

// The words that a lane reads.
template <int kColumns>
class Lane {
 public:
  using Chunk = typename Strip<kColumns>::Chunk;
  using Words = typename Strip<kColumns>::Words;

  __device__ Lane(const FewRowsArguments& a, int strip)
      : inputs_(static_cast<int>(a.inputs)), outputs_(a.outputs) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, m = lane % 4;
    const int64_t column = static_cast<int64_t>(strip) * kColumns + g * (kColumns / 8);
    first_ = 8 * m;
    w_ = static_cast<const __nv_bfloat16*>(a.w) + column;
    x_ = static_cast<const __nv_bfloat16*>(a.x) + g * a.inputs;
    has_columns_ = column < a.outputs;
    has_row_ = g < a.rows;
  }

  // One lane of each sector of 32 bytes prefetches it.
  __device__ void BringWeightsToCache(int chunk) const {
    const int input = chunk * kChunk + first_;
    if (!has_columns_ || input >= inputs_ || reinterpret_cast<uintptr_t>(w_) % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) BringToCache(w_ + (input + i) * outputs_);
  }
  __device__ void LoadWeights(int chunk, Chunk& to) const {
    const int input = chunk * kChunk + first_;
    const bool reads = has_columns_ && input < inputs_;
    const __nv_bfloat16* from = w_ + input * outputs_;
#pragma unroll
    for (int i = 0; i < 8; ++i, from += outputs_) {
      to.w[i] = reads ? *reinterpret_cast<const Words*>(from) : Words{};
    }
  }
  __device__ void LoadRow(int chunk, Chunk& to) const {
    const int input = chunk * kChunk + first_;
    uint4 words = {0, 0, 0, 0};
    if (has_row_ && input < inputs_) words = *reinterpret_cast<const uint4*>(x_ + input);
    memcpy(to.x, &words, sizeof(words));
  }
  __device__ void LoadNormedRow(int chunk, const BlockInputNorm& norm, Chunk& to) const {
    const int input = chunk * kChunk + first_;
    uint4 words = {0, 0, 0, 0};
    if (has_row_ && input < inputs_) words = norm.Values(Row(), input);
    memcpy(to.x, &words, sizeof(words));
  }
  static __device__ int Row() { return static_cast<int>(threadIdx.x) % kWarp / 4; }

 private:
  const int inputs_;
  const int64_t outputs_;
  int first_;  // first input of a chunk
  const __nv_bfloat16* w_;
  const __nv_bfloat16* x_;
  bool has_columns_, has_row_;
};

template <int kColumns>
__device__ void Multiply(const typename Strip<kColumns>::Chunk& chunk,
                         float (&sums)[Strip<kColumns>::kPairs][4]) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const auto* const w = chunk.w + 4 * step;
#pragma unroll
    for (int pair = 0; pair < Strip<kColumns>::kPairs; ++pair) {
      const uint32_t a[4] = {LowerHalves(w[0].pairs[pair], w[1].pairs[pair]),
                             UpperHalves(w[0].pairs[pair], w[1].pairs[pair]),
                             LowerHalves(w[2].pairs[pair], w[3].pairs[pair]),
                             UpperHalves(w[2].pairs[pair], w[3].pairs[pair])};
      MultiplyTiles(sums[pair], a, chunk.x[2 * step], chunk.x[2 * step + 1]);
    }
  }
}

// A strip is the work of kBlocks neighboring blocks, which form a cluster if there are several.
// Each of their warps has `warp_chunks` chunks, one after the other; the last ones may have fewer,
// or none.
template <int kColumns, int kMostWarps, int kBlocks, bool kHasNorm, typename Function>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    FewRowsKernel(const FewRowsArguments a, int warp_chunks) {
  using Own = Strip<kColumns>;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int warp = thread / kWarp, chunks = (static_cast<int>(a.inputs) + kChunk - 1) / kChunk;
  const int strip = static_cast<int>(blockIdx.x) / kBlocks;
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;  // in the cluster
  const int begin = (rank * (threads / kWarp) + warp) * warp_chunks;
  const int end = min(chunks, begin + warp_chunks);
  const Lane<kColumns> lane(a, strip);
  typename Own::Chunk loaded[Own::kChunks];
  const auto load_weights = [&](int first) {
#pragma unroll
    for (int i = 0; i < Own::kChunks; ++i) {
      if (first + i < end) lane.LoadWeights(first + i, loaded[i]);
    }
  };
  float* const of_warps = SharedMemory<float>();
  float* const of_block = of_warps + threads / kWarp * kRows * kColumns;
  BlockInputNorm norm(a.norm, a.x, static_cast<int>(a.rows), static_cast<int>(a.inputs),
                      kBlocks > 1 ? of_block + kRows * kColumns : of_block);
  LetNextKernelStart();
  if (a.loads_weights_early) {
    load_weights(begin);
    if constexpr (kHasNorm) norm.AskForWeights();
  }
  if (a.starts_early) {
    const int first = a.loads_weights_early ? begin + Own::kChunks : begin;
    for (int chunk = first; chunk < end; ++chunk) lane.BringWeightsToCache(chunk);
  }
  WaitForEarlierKernels();
  if (!a.loads_weights_early) {
    load_weights(begin);
    if constexpr (kHasNorm) norm.AskForWeights();
  }
  if constexpr (kHasNorm) norm.AskForRows();
  // Threads have a column of one row or several in the end, among those of the block. Its bias is
  // loaded meanwhile, and the addend of the first.
  constexpr int kOwnRows = kRows / kBlocks;
  const int column = thread % kColumns;
  const int64_t output = static_cast<int64_t>(strip) * kColumns + column;
  const bool ends = thread < threads / kColumns * kColumns && output < a.outputs;
  float bias = 0.0F;
  if (ends && a.bias != nullptr) bias = ToFloat(static_cast<const __nv_bfloat16*>(a.bias)[output]);

  const int end_row = min(static_cast<int>(a.rows), (rank + 1) * kOwnRows);
  const auto addend_of = [&](int row) {
    if (!ends || row >= end_row || a.addend == nullptr) return 0.0F;
    return ToFloat(static_cast<const __nv_bfloat16*>(a.addend)[row * a.outputs + output]);
  };
  const int first_row = rank * kOwnRows + thread / kColumns;
  float addend = addend_of(first_row);

  if constexpr (kHasNorm) norm.Prepare(Lane<kColumns>::Row());
  float sums[Own::kPairs][4] = {};
  for (int first = begin; first < end; first += Own::kChunks) {
    if (first > begin) load_weights(first);
#pragma unroll
    for (int i = 0; i < Own::kChunks; ++i) {
      if (!kHasNorm && first + i < end) lane.LoadRow(first + i, loaded[i]);
    }
#pragma unroll
    for (int i = 0; i < Own::kChunks; ++i) {
      if (first + i >= end) continue;
      if constexpr (kHasNorm) lane.LoadNormedRow(first + i, norm, loaded[i]);
      Multiply<kColumns>(loaded[i], sums);
    }
  }

  float* const own = of_warps + warp * kRows * kColumns;
  const int g = thread % kWarp / 4, m = thread % 4;
#pragma unroll
  for (int pair = 0; pair < Own::kPairs; ++pair) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<float2*>(own + Own::PlaceOf(2 * m + i, g * Own::kOwn + 2 * pair)) = {
          sums[pair][i], sums[pair][2 + i]};
    }
  }
  __syncthreads();
  // Returns the sum of the block's warps.
  const auto sum_of_warps = [&](int row, int of_column) {
    const float* const of_row = of_warps + Own::PlaceOf(row, of_column);
    float sum = of_row[0];
#pragma unroll 8
    for (int other = 1; other < threads / kWarp; ++other) {
      sum += of_row[other * kRows * kColumns];
    }
    return sum;
  };
  if constexpr (kBlocks > 1) {
    for (int place = thread; place < kRows * kColumns; place += threads) {
      of_block[place] = sum_of_warps(place / kColumns, place % kColumns);
    }
    ClusterBarrier();
  }
  for (int row = first_row; ends && row < end_row; row += threads / kColumns) {
    if (row > first_row) addend = addend_of(row);
    float z = 0.0F;
    if constexpr (kBlocks > 1) {
      float blocks[kBlocks];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        blocks[i] = LoadFromBlock(of_block + row * kColumns + column, static_cast<unsigned>(i));
      }
      z = blocks[0];
#pragma unroll
      for (int i = 1; i < kBlocks; ++i) z += blocks[i];
    } else {
      z = sum_of_warps(row, column);
    }
    z += bias;
    const int64_t place = row * a.outputs + output;
    if (a.z != nullptr) static_cast<__nv_bfloat16*>(a.z)[place] = FromFloat<__nv_bfloat16>(z);
    __nv_bfloat16 y = FromFloat<__nv_bfloat16>(Function::Of(z));
    if (a.addend != nullptr) y = FromFloat<__nv_bfloat16>(ToFloat(y) + addend);
    if (a.has_relu) y = FromFloat<__nv_bfloat16>(ReluActivation::Of(ToFloat(y)));
    static_cast<__nv_bfloat16*>(a.y)[place] = y;
  }
  if constexpr (kBlocks > 1) ClusterBarrier();
}

int64_t Quotient(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

// Returns the chunks of each warp.
int64_t WarpChunks(const FewRowsTile& tile, const FewRowsArguments& a) {
  return Quotient(Quotient(a.inputs, kChunk), tile.warps * tile.blocks);
}

// Returns the warps of each block, which has at least one thread for each column.
int64_t WarpsOf(const FewRowsTile& tile, const FewRowsArguments& a) {
  const int64_t warps = Quotient(Quotient(a.inputs, kChunk), WarpChunks(tile, a));
  return std::max<int64_t>(Quotient(warps, tile.blocks), tile.columns / kWarp);
}

template <int kColumns, int kMostWarps, int kBlocks>
cudaError_t LaunchTile(cudaStream_t stream, Activation activation, const FewRowsArguments& a) {
  static_assert(kBlocks <= static_cast<int>(kMaxClusterBlocks) && kRows % kBlocks == 0);
  constexpr FewRowsTile kTile = {kColumns, kMostWarps, kBlocks};
  const bool has_norm = a.norm.gamma != nullptr;
  const auto grid = dim3(static_cast<unsigned>(Quotient(a.outputs, kColumns) * kBlocks));
  return WithActivation(activation, [&](auto function) {
    using Function = decltype(function);
    return LaunchClusters(kBlocks, a.starts_early,
                          has_norm ? FewRowsKernel<kColumns, kMostWarps, kBlocks, true, Function>
                                   : FewRowsKernel<kColumns, kMostWarps, kBlocks, false, Function>,
                          grid, dim3(static_cast<unsigned>(WarpsOf(kTile, a) * kWarp)),
                          static_cast<size_t>(FewRowsSharedBytes(kTile, a, has_norm)), stream, a,
                          static_cast<int>(WarpChunks(kTile, a)));
  });
}

template <int kColumns, int kMostWarps, int kBlocks>
constexpr FewRowsTile Entry() {
  return {kColumns, kMostWarps, kBlocks, LaunchTile<kColumns, kMostWarps, kBlocks>};
}

// Narrow strips occupy more multiprocessors, and so do clusters; wide ones read longer pieces of
// memory.
constexpr FewRowsTile kTiles[] = {Entry<32, 24, 1>(), Entry<16, 24, 1>(), Entry<32, 12, 1>(),
                                  Entry<64, 12, 1>(), Entry<64, 24, 1>(), Entry<64, 12, 2>(),
                                  Entry<64, 12, 4>(), Entry<64, 12, 8>()};

}  // namespace

std::span<const FewRowsTile> FewRowsTiles() { return kTiles; }

int64_t FewRowsSharedBytes(const FewRowsTile& tile, const FewRowsArguments& a, bool has_norm) {
  // Also those of the block, if others read them.
  const int64_t sums = WarpsOf(tile, a) + (tile.blocks > 1 ? 1 : 0);
  return sums * kRows * tile.columns * static_cast<int64_t>(sizeof(float)) +
         (has_norm ? BlockInputNorm::SharedBytes(a.rows, a.inputs) : 0);
}

}  // namespace stagecoach::kernels
