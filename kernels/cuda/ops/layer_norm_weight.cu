#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/layer_norm_kernels.h"

// The gradients of LayerNorm's parameters, which are sums over columns: R rows, C features. First
// each block of rows is summed on its own, into the workspace (blocks, P, C), then the blocks are.
// P is 2, the parameters; RMSNorm has one, and the other sum is not written.
// The order in which a column is summed depends on R and C alone.
namespace stagecoach::kernels {
namespace {

constexpr int kWarps = 8;  // of a block of threads: row w, w + kWarps, ... is warp w's
constexpr int kThreads = kWarp * kWarps;
constexpr int kBatch = 4;          // rows that a thread has in flight
constexpr int kMinBlockRows = 64;  // so that what is written is small beside what is read
constexpr int kMaxBlocks = 1024;   // of rows, times 128 columns

struct RowBlocks {
  int64_t rows;  // of each, but maybe the last
  int64_t count;
};

RowBlocks CutRows(int64_t rows, int64_t features) {
  const int64_t column_tiles = (features + 127) / 128;
  const int64_t most = std::max<int64_t>(1, kMaxBlocks / column_tiles);
  const int64_t blocks = std::clamp<int64_t>(rows / kMinBlockRows, 1, most);
  const int64_t block_rows = (rows + blocks - 1) / blocks;
  return {block_rows, (rows + block_rows - 1) / block_rows};
}

int64_t Parameters(bool centers) { return centers ? 2 : 1; }

template <int N>
__device__ void AddRow(float mean, float rstd, const float (&dy)[N], const float (&x)[N],
                       float (&dgamma)[N], float (&dbeta)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    dgamma[i] += dy[i] * ((x[i] - mean) * rstd);
    dbeta[i] += dy[i];
  }
}

// A block of threads sums one block of rows in 32 N columns.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    PartialSumsKernel(const LayerNormBackwardWeightArguments a, int64_t block_rows) {
  const int64_t C = a.features;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kWarp * N;
  const int64_t c = first_column + static_cast<int64_t>(threadIdx.x) * N;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * block_rows;
  const int64_t end = begin + block_rows < a.rows ? begin + block_rows : a.rows;
  float dgamma[N] = {}, dbeta[N] = {};
  if (c < C) {
    const T* const dy = static_cast<const T*>(a.dy) + c;
    const T* const x = static_cast<const T*>(a.x) + c;
    for (int64_t first = begin + threadIdx.y; first < end; first += kBatch * kWarps) {
      float dy_r[kBatch][N], x_r[kBatch][N];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int64_t r = first + k * kWarps;
        if (r < end) {
          Load(dy + r * C, dy_r[k]);
          Load(x + r * C, x_r[k]);
        }
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int64_t r = first + k * kWarps;
        if (r >= end) continue;
        const float mean = a.centers ? a.statistics[2 * r] : 0.0F;
        const float rstd = a.statistics[a.centers ? 2 * r + 1 : r];
        AddRow(mean, rstd, dy_r[k], x_r[k], dgamma, dbeta);
      }
    }
  }
  constexpr int kColumns = kWarp * N;
  float* const sums = SharedMemory<float>();  // (kWarps, 2, kColumns)
  float* const own = sums + (threadIdx.y * 2 * kWarp + threadIdx.x) * N;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    own[i] = dgamma[i];
    own[kColumns + i] = dbeta[i];
  }
  __syncthreads();
  const int parameters = a.centers ? 2 : 1;
  float* const partial = a.workspace + static_cast<int64_t>(blockIdx.y) * parameters * C;
  for (int j = static_cast<int>(threadIdx.y * kWarp + threadIdx.x); j < parameters * kColumns;
       j += kThreads) {
    const int64_t column = first_column + j % kColumns;
    if (column >= C) continue;
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp * 2 * kColumns + j];
    partial[(j / kColumns) * C + column] = sum;
  }
}

// The P C columns of the workspace, 32 to a block of threads.
__global__ void __launch_bounds__(kThreads)
    TotalSumsKernel(const LayerNormBackwardWeightArguments a, int64_t blocks) {
  const int64_t C = a.features;
  const int64_t columns = a.centers ? 2 * C : C;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0.0F;
  if (j < columns) {
#pragma unroll 4
    for (int64_t block = threadIdx.y; block < blocks; block += kWarps) {
      sum += a.workspace[block * columns + j];
    }
  }
  float* const sums = SharedMemory<float>();  // (kWarps, 32)
  sums[threadIdx.y * kWarp + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  float total = 0.0F;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp * kWarp + threadIdx.x];
  float* const to = j < C ? a.dgamma + j : a.dbeta + (j - C);
  *to = a.accumulate ? *to + total : total;
}

}  // namespace

int64_t LayerNormWorkspaceBytes(int64_t rows, int64_t features, bool centers) {
  return CutRows(rows, features).count * Parameters(centers) * features *
         static_cast<int64_t>(sizeof(float));
}

cudaError_t LaunchLayerNormBackwardWeight(cudaStream_t stream, ElementType type,
                                          const LayerNormBackwardWeightArguments& a) {
  const RowBlocks blocks = CutRows(a.rows, a.features);
  const dim3 threads(kWarp, kWarps);
  const auto vectors = [&](int width) {
    return a.features % width == 0 && AlignedForVectors(a.dy, a.x);
  };
  const cudaError_t error = DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t tiles = (a.features + kWarp * N - 1) / (kWarp * N);
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(blocks.count));
    return Launch(PartialSumsKernel<decltype(element), N>, grid, threads,
                  sizeof(float) * kThreads * 2 * N, stream, a, blocks.rows);
  });
  if (error != cudaSuccess) return error;
  const int64_t tiles = (Parameters(a.centers) * a.features + kWarp - 1) / kWarp;
  return Launch(TotalSumsKernel, dim3(static_cast<unsigned>(tiles)), threads,
                sizeof(float) * kThreads, stream, a, blocks.count);
}

}  // namespace stagecoach::kernels
