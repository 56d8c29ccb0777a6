#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
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

// Returns as many blocks as fill each multiprocessor of a large GPU with some 600 threads, or
// nearly so. But a team has several rows, so that what is written stays small compared with what is
// read.
RowBlocks CutRows(int64_t rows, int64_t features) {
  constexpr int64_t kMultiprocessors = 128;
  constexpr int64_t kThreadsOfEach = 600;
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

struct RowStatistics {
  float mean = 0.0F, rstd = 0.0F;
};
__device__ RowStatistics StatisticsOf(const Arguments& a, int64_t r) {
  if (a.centers) return {a.statistics[2 * r], a.statistics[2 * r + 1]};
  return {0.0F, a.statistics[r]};
}

// N columns of a row as they lie in memory.
template <typename T, int N>
struct Operands {
  Packed<T, N> dy, x, addend;
};

template <typename T, int N, bool kAddend>
struct OperandSource {
  const T* dy;
  const T* x;
  const T* addend;

  // Reads from element `offset` of the matrices on.
  __device__ OperandSource(const Arguments& a, int64_t offset)
      : dy(static_cast<const T*>(a.dy) + offset),
        x(static_cast<const T*>(a.x) + offset),
        addend(kAddend ? static_cast<const T*>(a.addend) + offset : nullptr) {}

  __device__ void operator()(int64_t c, Operands<T, N>& operands) const {
    operands.dy = LoadPacked<T, N>(dy + c);
    operands.x = LoadPacked<T, N>(x + c);
    if constexpr (kAddend) operands.addend = LoadPacked<T, N>(addend + c);
  }
};

template <typename T, int N>
struct GammaSource {
  const T* gamma;

  __device__ void operator()(int64_t c, Packed<T, N>& to) const {
    to = LoadPacked<T, N>(gamma + c);
  }
};

// The terms of the gradients of N columns: dy, xhat and g = dy gamma, and how they are combined.
template <typename T, int N>
struct Terms {
  float dy[N], xhat[N];

  __device__ Terms(const Operands<T, N>& operands, RowStatistics statistics) {
    float x[N];
    Unpack<T, N>(operands.dy, dy);
    Unpack<T, N>(operands.x, x);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      xhat[i] = __fmul_rn(__fadd_rn(x[i], -statistics.mean), statistics.rstd);
    }
  }

  // Adds to the row's sums of g and of g xhat.
  __device__ void AddTo(SumPair& sums, Packed<T, N> gamma) const {
    float factor[N];
    Unpack<T, N>(gamma, factor);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = __fmul_rn(dy[i], factor[i]);
      sums.first = __fadd_rn(sums.first, g);
      sums.second = __fmaf_rn(g, xhat[i], sums.second);
    }
  }

  // Adds to the sums of the columns.
  __device__ void AddTo(float (&dgamma)[N], float (&dbeta)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      dgamma[i] = __fmaf_rn(dy[i], xhat[i], dgamma[i]);
      dbeta[i] = __fadd_rn(dbeta[i], dy[i]);
    }
  }

  // `means` are those of the row's g and g xhat.
  template <bool kAddend>
  __device__ void StoreDx(const Operands<T, N>& operands, Packed<T, N> gamma, SumPair means,
                          float rstd, T* dx) const {
    float factor[N], addend[N], values[N];
    Unpack<T, N>(gamma, factor);
    if constexpr (kAddend) Unpack<T, N>(operands.addend, addend);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = __fmul_rn(dy[i], factor[i]);
      const float difference = __fmaf_rn(-xhat[i], means.second, __fadd_rn(g, -means.first));
      if constexpr (kAddend) {
        values[i] = __fmaf_rn(rstd, difference, addend[i]);
      } else {
        values[i] = __fmul_rn(rstd, difference);
      }
    }
    Store(dx, values);
  }
};

// Returns the means of g and g xhat from a thread's sums. A team has any number of warps here, a
// block any number of teams, and all of them call this together. `scratch`, kMaxWarps values, must
// differ from the previous call's.
__device__ SumPair TeamMeans(SumPair sums, const Arguments& a, SumPair* scratch) {
  const auto add = [](SumPair left, SumPair right) { return left + right; };
  sums = WarpReduce(sums, add);
  if (blockDim.x != kWarp) {
    const unsigned warps = blockDim.x / kWarp;
    SumPair* const of_team = scratch + threadIdx.y * warps;
    if (threadIdx.x % kWarp == 0) of_team[threadIdx.x / kWarp] = sums;
    __syncthreads();
    sums = of_team[0];
#pragma unroll 4
    for (unsigned warp = 1; warp < warps; ++warp) sums = sums + of_team[warp];
  }
  const float inverse = 1.0F / static_cast<float>(a.features);
  return {a.centers ? __fmul_rn(sums.first, inverse) : 0.0F, __fmul_rn(sums.second, inverse)};
}

// Adds up the teams' sums of each column of a block, in their order, into `to`, which has `columns`
// of their columns.
template <int N, int kHeld>
__device__ void WriteBlockSums(const float (&own)[kHeld][N], int columns, float* to) {
  constexpr int kQuad = N == 1 ? 1 : kVectorWidth<float>;
  const int width = static_cast<int>(blockDim.x) * kHeld * N;
  float* const sums = SharedMemory<float>();  // (teams, width)
  __syncthreads();                            // the old contents have been read
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float* const at = sums + static_cast<int>(threadIdx.y) * width +
                      static_cast<int>(threadIdx.x + static_cast<unsigned>(k) * blockDim.x) * N;
#pragma unroll
    for (int i = 0; i < N; i += kQuad) {
      float quad[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) quad[j] = own[k][i + j];
      StoreShared(at + i, quad);
    }
  }
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); j < columns;
       j += static_cast<int>(blockDim.x * blockDim.y)) {
    float sum = sums[j];
    for (unsigned team = 1; team < blockDim.y; ++team) {
      sum = __fadd_rn(sum, sums[static_cast<int>(team) * width + j]);
    }
    to[j] = sum;
  }
}

// Must be called by all threads of the block that has block `block` of the rows.
template <int N, int kHeld>
__device__ void WriteBlockSums(const Arguments& a, int64_t block, int64_t first_column,
                               int64_t columns, const float (&dgamma)[kHeld][N],
                               const float (&dbeta)[kHeld][N]) {
  float* const to = a.workspace + block * (a.centers ? 2 : 1) * a.features + first_column;
  WriteBlockSums(dgamma, static_cast<int>(columns), to);
  if (a.centers) WriteBlockSums(dbeta, static_cast<int>(columns), to + a.features);
}

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
    const SumPair means = TeamMeans(sums, a, scratch);
    row.ForEachNumbered([&](int k, int64_t c, const Operands<T, N>& operands) {
      const Terms<T, N> terms(operands, statistics);
      terms.template StoreDx<kAddend>(operands, gamma[k], means, statistics.rstd,
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
  const SumPair means = TeamMeans(sums, a, SharedMemory<SumPair>());
  T* const dx = static_cast<T*>(a.dx) + r * a.features;
  row.ForEach([&](int64_t c, const Operands<T, N>& operands) {
    const Terms<T, N> terms(operands, statistics);
    terms.template StoreDx<kAddend>(operands, LoadPacked<T, N>(gamma + c), means, statistics.rstd,
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
          return Launch(adds ? BackwardKernel<T, N, kHeld, true, true>
                             : BackwardKernel<T, N, kHeld, false, true>,
                        dim3(static_cast<unsigned>(blocks.count)), teams,
                        std::max(kMeansBytes, BlockSumsBytes(teams, kHeld * N)), stream, a,
                        blocks.rows);
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
