#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/layer_norm_backward.cuh"
#include "kernels/cuda/ops/layer_norm_kernels.h"

// LayerNorm or RMSNorm backward: R rows, C features.
//
// The rows are cut into blocks of rows, one for each block of threads. If a block's threads hold a
// whole row (C <= kLongestHeld), they walk through their rows and compute dx and their share of the
// parameters' gradients from a single read. These gradients are sums over columns: each block
// writes its own into the workspace (blocks, P, C), and they are then added up. P is 2, the
// parameters; RMSNorm has one, and the other sum is not written.
//
// The gradients of input and parameters may be requested together or separately, and have the same
// bits: a row is summed in an order that depends on C alone, a column in one that depends on R and
// C alone, and every product and sum is rounded as written here (__fmul_rn and the like), whatever
// the surrounding code.
namespace stagecoach::kernels {
namespace {

using Arguments = LayerNormBackwardArguments;

// The columns of a row that a thread has: one 16-byte access of bfloat16. Twice as many if a row
// would otherwise not fit into a block.
constexpr int kShare = 8;
constexpr int64_t kLongRow = int64_t{kMaxTeamThreads} * kShare;
constexpr int64_t kLongestHeld = 2 * kLongRow;
// Blocks of kMaxTeamThreads threads on a multiprocessor: they have 64 registers for each thread.
[[maybe_unused]] constexpr int kRingBlocks = 2;

// Blocks of rows: `count` of them, with `rows` each, except perhaps the last. Row i of a block
// belongs to team i mod teams.
struct RowBlocks {
  int64_t rows, count;
};

// Returns the block of threads whose teams have whole rows of up to kLongestHeld columns.
dim3 TeamsFor(int64_t features) {
  constexpr unsigned kUsualThreads = 256;
  const int64_t share = features <= kLongRow ? kShare : 2 * kShare;
  const int64_t warps = (std::min(features, kLongestHeld) + kWarp * share - 1) / (kWarp * share);
  const auto threads = static_cast<unsigned>(warps * kWarp);
  return {threads, std::max(1U, kUsualThreads / threads)};
}

// Returns as many blocks as fill each multiprocessor of a large GPU with some 1,000 threads, or
// nearly so. But a team has several rows, so that what is written stays small compared with what is
// read.
RowBlocks CutRows(int64_t rows, int64_t features) {
  constexpr int64_t kMultiprocessors = 128;
  constexpr int64_t kThreadsOfEach = 1024;
  constexpr int64_t kMinTeamRows = 4;
  const dim3 teams = TeamsFor(features);
  const int64_t threads = int64_t{teams.x} * teams.y;
  int64_t most = kMultiprocessors * std::max<int64_t>(1, (kThreadsOfEach + threads / 2) / threads);
  // Rows that no block holds are summed in pieces, of which there are enough.
  if (features > kLongestHeld) most = std::max<int64_t>(1, most * kLongestHeld / features);
  const int64_t blocks = std::clamp<int64_t>(rows / (kMinTeamRows * teams.y), 1, most);
  const int64_t turns = (rows + blocks * teams.y - 1) / (blocks * teams.y);
  const int64_t block_rows = turns * teams.y;
  return {block_rows, (rows + block_rows - 1) / block_rows};
}

int64_t Parameters(bool centers) { return centers ? 2 : 1; }

// Computes dx of `block_rows` rows, and their part of the sums over columns if kWeight; otherwise a
// team has at most one row. While a row is summed, the next one is being loaded.
template <typename T, int N, int kHeld, bool kAddend, bool kWeight>
__global__ void __launch_bounds__(kMaxTeamThreads)
    BackwardKernel(const Arguments a, int64_t block_rows) {
  using Row = HeldRow<Operands<T, N>, N, kHeld>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * block_rows;
  const int64_t end = begin + block_rows < a.rows ? begin + block_rows : a.rows;
  const HeldRow<Packed<T, N>, N, kHeld> gamma(a.features,
                                              GammaSource<T, N>{static_cast<const T*>(a.gamma)});
  float dgamma[kHeld][N] = {}, dbeta[kHeld][N] = {};
  SumPair* scratch = SharedMemory<SumPair>();
  SumPair* other_scratch = scratch + kMaxWarps;
  int64_t offset = (begin + threadIdx.y) * a.features;  // of the current row, in elements
  const int64_t step = a.features * static_cast<int>(blockDim.y);
  const float inverse = 1.0F / static_cast<float>(a.features);
  Row next;
  RowStatistics next_statistics;
  // A team without a row in a turn has one without columns, because all turns have a barrier.
  const auto read = [&](int64_t r, int64_t from) {
    next = Row(r < end ? a.features : 0, OperandSource<T, N, kAddend>(a, from));
    if (r < end) next_statistics = StatisticsOf(a, r);
  };
  read(begin + threadIdx.y, offset);
  // If there are registers for two turns at once, no value moves from `next` to `row`.
  [[maybe_unused]] constexpr int kTurns = kHeld <= 2 && kHeld * N == kShare ? 2 : 1;
#pragma unroll(kTurns)
  for (int64_t first = begin; first < end; first += blockDim.y) {
    const Row row = next;
    const RowStatistics statistics = next_statistics;
    if constexpr (kWeight) read(first + threadIdx.y + blockDim.y, offset + step);
    SumPair sums{0.0F, 0.0F};
    row.ForEachNumbered([&](int k, int64_t, const Operands<T, N>& operands) {
      const Terms<T, N> terms(operands, statistics);
      terms.AddTo(sums, gamma[k]);
      if constexpr (kWeight) terms.AddTo(dgamma[k], dbeta[k]);
    });
    const SumPair means = TeamMeans(sums, a, inverse, scratch);
    row.ForEachNumbered([&](int k, int64_t c, const Operands<T, N>& operands) {
      const Terms<T, N> terms(operands, statistics);
      terms.template StoreDx<kAddend>(operands.addend, gamma[k], means, statistics.rstd,
                                      static_cast<T*>(a.dx) + offset + c);
    });
    if constexpr (!kWeight) break;  // each team has one row
    offset += step;
    SumPair* const used = scratch;
    scratch = other_scratch;
    other_scratch = used;
  }
  if constexpr (kWeight) WriteBlockSums(a, blockIdx.x, 0, a.features, dgamma, dbeta);
}

// Does the same for both gradients if a thread has kShare columns of a row, in whole vectors. The
// next rows are on their way to shared memory meanwhile.
template <typename T, int N, bool kAddend, bool kCenters>
__global__ void __launch_bounds__(kMaxTeamThreads, kRingBlocks)
    RingKernel(const Arguments a, int64_t block_rows, float inverse) {
  constexpr int kHeld = kShare / N;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * block_rows;
  const int64_t left = a.rows - begin;
  const int rows = static_cast<int>(left < block_rows ? left : block_rows);
  SumPair* const scratch = SharedMemory<SumPair>();
  RowRing<T, N, kHeld, kAddend> ring(a, begin * a.features, rows, scratch + 2 * kMaxWarps);
  float dgamma[kHeld][N] = {}, dbeta[kHeld][N] = {};
  int row = static_cast<int>(threadIdx.y);
  constexpr int kStatistics = kCenters ? 2 : 1;
  const float* statistics_at = a.statistics + (begin + row) * kStatistics;
  RowStatistics next_statistics;
  if (row < rows) next_statistics = StatisticsAt<kCenters>(statistics_at);
  int turn = 0;
  for (int first = 0; first < rows; first += static_cast<int>(blockDim.y)) {
    const RowStatistics statistics = next_statistics;
    const int next = row + static_cast<int>(blockDim.y);
    statistics_at += kStatistics * static_cast<int>(blockDim.y);
    if (next < rows) next_statistics = StatisticsAt<kCenters>(statistics_at);
    ring.Next();
    Terms<T, N, kCenters> terms[kHeld];
    SumPair sums{0.0F, 0.0F};
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (row >= rows || !ring.Has(k)) continue;
      terms[k] = Terms<T, N, kCenters>(ring.operands(k), statistics);
      terms[k].AddTo(sums, ring.gamma(k));
      terms[k].AddTo(dgamma[k], dbeta[k]);
    }
    const SumPair means = TeamMeans<kCenters>(sums, a, inverse, scratch + turn * kMaxWarps);
    T* const dx = static_cast<T*>(a.dx) + ring.offset();
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (row >= rows || !ring.Has(k)) continue;
      Packed<T, N> addend{};
      if constexpr (kAddend) addend = ring.addend(k);
      terms[k].template StoreDx<kAddend>(addend, ring.gamma(k), means, statistics.rstd,
                                         dx + ring.Column(k));
    }
    row = next;
    turn = 1 - turn;
  }
  WriteBlockSums(a, blockIdx.x, 0, a.features, dgamma, dbeta);
}

// Computes dx of rows of any length, one block for each.
template <typename T, int N, bool kAddend>
__global__ void __launch_bounds__(kMaxTeamThreads) LongRowsKernel(const Arguments a) {
  const auto r = static_cast<int64_t>(blockIdx.x);
  const auto row =
      MakeRow<Operands<T, N>, N, 0>(a.features, OperandSource<T, N, kAddend>(a, r * a.features));
  const T* const gamma = static_cast<const T*>(a.gamma);
  const RowStatistics statistics = StatisticsOf(a, r);
  SumPair sums{0.0F, 0.0F};
  row.ForEach([&](int64_t c, const Operands<T, N>& operands) {
    Terms<T, N>(operands, statistics).AddTo(sums, LoadPacked<T, N>(gamma + c));
  });
  const SumPair means = TeamMeans(sums, a, 1.0F / static_cast<float>(a.features), SharedMemory<SumPair>());
  T* const dx = static_cast<T*>(a.dx) + r * a.features;
  row.ForEach([&](int64_t c, const Operands<T, N>& operands) {
    const Terms<T, N> terms(operands, statistics);
    terms.template StoreDx<kAddend>(operands.addend, LoadPacked<T, N>(gamma + c), means, statistics.rstd,
                                    dx + c);
  });
}

// Computes the sums over columns alone, kShare blockDim.x columns per block.
template <typename T, int N>
__global__ void __launch_bounds__(kMaxTeamThreads)
    BackwardWeightKernel(const Arguments a, int64_t block_rows) {
  constexpr int kHeld = kShare / N;
  constexpr int kBatch = kHeld < 4 ? 4 / kHeld : 1;  // rows that a team has in flight
  using Row = HeldRow<Operands<T, N>, N, kHeld>;
  const int64_t width = int64_t{kShare} * blockDim.x;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * width;
  const int64_t columns = a.features - first_column < width ? a.features - first_column : width;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * block_rows;
  const int64_t end = begin + block_rows < a.rows ? begin + block_rows : a.rows;
  float dgamma[kHeld][N] = {}, dbeta[kHeld][N] = {};
  for (int64_t first = begin + threadIdx.y; first < end; first += kBatch * blockDim.y) {
    Row rows[kBatch];
    RowStatistics statistics[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      // Beyond the end, this is a row without columns.
      const int64_t r = first + j * static_cast<int>(blockDim.y);
      const bool exists = r < end;
      rows[j] =
          Row(exists ? columns : 0, OperandSource<T, N, false>(a, r * a.features + first_column));
      statistics[j] = StatisticsOf(a, exists ? r : first);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      rows[j].ForEachNumbered([&](int k, int64_t, const Operands<T, N>& operands) {
        Terms<T, N>(operands, statistics[j]).AddTo(dgamma[k], dbeta[k]);
      });
    }
  }
  WriteBlockSums(a, blockIdx.y, first_column, columns, dgamma, dbeta);
}

constexpr int kTotalWarps = 16;

// Sums the P C columns of the workspace, 32 per block of threads.
__global__ void __launch_bounds__(kWarp* kTotalWarps)
    TotalSumsKernel(const Arguments a, int64_t blocks) {
  const int64_t C = a.features;
  const int64_t columns = a.centers ? 2 * C : C;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0.0F;
  if (j < columns) {
#pragma unroll 8
    for (int64_t block = threadIdx.y; block < blocks; block += kTotalWarps) {
      sum += a.workspace[block * columns + j];
    }
  }
  float* const sums = SharedMemory<float>();  // (kTotalWarps, 32)
  sums[threadIdx.y * kWarp + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  float total = 0.0F;
#pragma unroll
  for (int warp = 0; warp < kTotalWarps; ++warp) total += sums[warp * kWarp + threadIdx.x];
  float* const to = j < C ? a.dgamma + j : a.dbeta + (j - C);
  *to = a.accumulate ? *to + total : total;
}

constexpr size_t kMeansBytes = 2 * kMaxWarps * sizeof(SumPair);

size_t BlockSumsBytes(const dim3& teams, int share) {
  return sizeof(float) * teams.x * teams.y * static_cast<size_t>(share);
}

cudaError_t LaunchWeight(cudaStream_t stream, ElementType type, const Arguments& a) {
  const RowBlocks blocks = CutRows(a.rows, a.features);
  const dim3 teams = a.features <= kLongRow ? TeamsFor(a.features) : dim3(256);
  const auto vectors = [&](int width) {
    return a.features % width == 0 && AlignedForVectors(a.dy, a.x);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    const int64_t pieces = (a.features + kShare * teams.x - 1) / (kShare * teams.x);
    const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(blocks.count));
    return Launch(BackwardWeightKernel<decltype(element), decltype(width)::value>, grid, teams,
                  BlockSumsBytes(teams, kShare), stream, a, blocks.rows);
  });
}

// Computes dx and, with `weight`, if the registers of a block suffice, all but the last step of the
// parameters' gradients too: `weight` is then set to false.
cudaError_t LaunchInput(cudaStream_t stream, ElementType type, const Arguments& a, bool& weight) {
  const auto vectors = [&](int width) {
    return a.features % width == 0 && AlignedForVectors(a.dy, a.x, a.gamma, a.addend, a.dx);
  };
  const bool adds = a.addend != nullptr;
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const dim3 teams = TeamsFor(a.features);
    const auto launch = [&](auto held) {
      constexpr int kHeld = decltype(held)::value;
      constexpr bool kSuffice = kHeld * N == kShare || kHeld <= 2;
      if constexpr (kSuffice) {
        if (std::exchange(weight, false)) {
          const RowBlocks blocks = CutRows(a.rows, a.features);
          const dim3 grid(static_cast<unsigned>(blocks.count));
          const size_t sums_bytes = BlockSumsBytes(teams, kHeld * N);
          if constexpr (N > 1 && kHeld * N == kShare) {
            const auto launch_ring = [&](auto kernel, size_t ring_bytes) {
              return Launch(kernel, grid, teams, std::max(kMeansBytes + ring_bytes, sums_bytes),
                            stream, a, blocks.rows, 1.0F / static_cast<float>(a.features));
            };
            const unsigned threads = teams.x * teams.y;
            return adds ? launch_ring(a.centers ? RingKernel<T, N, true, true>
                                                : RingKernel<T, N, true, false>,
                                      RowRing<T, N, kHeld, true>::Bytes(threads))
                        : launch_ring(a.centers ? RingKernel<T, N, false, true>
                                                : RingKernel<T, N, false, false>,
                                      RowRing<T, N, kHeld, false>::Bytes(threads));
          } else {
          return Launch(adds ? BackwardKernel<T, N, kHeld, true, true>
                             : BackwardKernel<T, N, kHeld, false, true>,
                        grid, teams, std::max(kMeansBytes, sums_bytes), stream, a, blocks.rows);
          }
        }
      }
      const int64_t blocks = (a.rows + teams.y - 1) / teams.y;
      return Launch(adds ? BackwardKernel<T, N, kHeld, true, false>
                         : BackwardKernel<T, N, kHeld, false, false>,
                    dim3(static_cast<unsigned>(blocks)), teams, kMeansBytes, stream, a,
                    int64_t{teams.y});
    };
    if (a.features <= kLongRow) return launch(std::integral_constant<int, kShare / N>());
    if constexpr (N > 1) {
      if (a.features <= kLongestHeld) return launch(std::integral_constant<int, 2 * kShare / N>());
    }
    return Launch(adds ? LongRowsKernel<T, N, true> : LongRowsKernel<T, N, false>,
                  dim3(static_cast<unsigned>(a.rows)), dim3(kMaxTeamThreads), kMeansBytes, stream,
                  a);
  });
}

}  // namespace

int64_t LayerNormWorkspaceBytes(int64_t rows, int64_t features, bool centers) {
  return CutRows(rows, features).count * Parameters(centers) * features *
         static_cast<int64_t>(sizeof(float));
}

cudaError_t LaunchLayerNormBackward(cudaStream_t stream, ElementType type, const Arguments& a) {
  bool weight = a.dgamma != nullptr;
  if (a.dx != nullptr) {
    const cudaError_t error = LaunchInput(stream, type, a, weight);
    if (error != cudaSuccess) return error;
  }
  if (a.dgamma == nullptr) return cudaSuccess;
  if (weight) {
    const cudaError_t error = LaunchWeight(stream, type, a);
    if (error != cudaSuccess) return error;
  }
  const int64_t pieces = (Parameters(a.centers) * a.features + kWarp - 1) / kWarp;
  return Launch(TotalSumsKernel, dim3(static_cast<unsigned>(pieces)), dim3(kWarp, kTotalWarps),
                sizeof(float) * kWarp * kTotalWarps, stream, a, CutRows(a.rows, a.features).count);
}

}  // namespace stagecoach::kernels
