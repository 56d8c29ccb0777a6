#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/column_sums_kernels.h"

// First each block of rows is summed on its own, into the workspace (blocks, O), then the blocks
// are.
namespace stagecoach::kernels {
namespace {

constexpr int kWarps = 8;  // of a block that sums columns: row w, w + kWarps, ... is warp w's

struct RowBlocks {
  int64_t rows;  // of each, but maybe the last
  int64_t count;
};

RowBlocks CutRows(int64_t rows, int64_t columns) {
  constexpr int64_t kMinBlockRows = 64;  // so that what is written is small beside what is read
  constexpr int64_t kMaxBlocks = 1024;   // of rows, times 128 columns
  const int64_t column_tiles = (columns + 127) / 128;
  const int64_t most = std::max<int64_t>(1, kMaxBlocks / column_tiles);
  const int64_t blocks = std::clamp<int64_t>(rows / kMinBlockRows, 1, most);
  const int64_t block_rows = (rows + blocks - 1) / blocks;
  return {block_rows, (rows + block_rows - 1) / block_rows};
}

// A block of threads sums `block_rows` rows in 32 N columns; sums (blocks of rows, columns).
template <typename T, int N>
__global__ void __launch_bounds__(kWarp* kWarps)
    ColumnSumsKernel(const ColumnSumsArguments a, int64_t block_rows) {
  constexpr int kColumns = kWarp * N;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int64_t column = first_column + static_cast<int64_t>(threadIdx.x) * N;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * block_rows;
  const int64_t end = begin + block_rows < a.rows ? begin + block_rows : a.rows;
  float sum[N] = {};
  if (column < a.columns) {
    const T* const from = static_cast<const T*>(a.matrix) + column;
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < end; r += kWarps) {
      float values[N];
      Load(from + r * a.columns, values);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += values[i];
    }
  }
  float* const sums = SharedMemory<float>();  // (kWarps, kColumns)
#pragma unroll
  for (int i = 0; i < N; ++i) sums[(threadIdx.y * kWarp + threadIdx.x) * N + i] = sum[i];
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.y * kWarp + threadIdx.x); j < kColumns;
       j += kWarps * kWarp) {
    if (first_column + j >= a.columns) continue;
    float total = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += sums[warp * kColumns + j];
    float* const to = a.sums + static_cast<int64_t>(blockIdx.y) * a.columns + first_column + j;
    *to = a.accumulate ? *to + total : total;
  }
}

cudaError_t SumBlocksOfRows(cudaStream_t stream, ElementType type, const ColumnSumsArguments& a,
                            const RowBlocks& blocks) {
  const auto vectors = [&](int width) {
    return a.columns % width == 0 && AlignedForVectors(a.matrix);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t tiles = (a.columns + kWarp * N - 1) / (kWarp * N);
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(blocks.count));
    return Launch(ColumnSumsKernel<decltype(element), N>, grid, dim3(kWarp, kWarps),
                  sizeof(float) * kWarps * kWarp * N, stream, a, blocks.rows);
  });
}

}  // namespace

int64_t ColumnSumsWorkspaceBytes(int64_t rows, int64_t columns) {
  const int64_t blocks = CutRows(rows, columns).count;
  return blocks == 1 ? 0 : blocks * columns * static_cast<int64_t>(sizeof(float));
}

cudaError_t LaunchColumnSums(cudaStream_t stream, ElementType type, const ColumnSumsArguments& a) {
  const RowBlocks blocks = CutRows(a.rows, a.columns);
  if (blocks.count == 1) return SumBlocksOfRows(stream, type, a, blocks);
  ColumnSumsArguments partial = a;
  partial.sums = a.workspace;
  partial.accumulate = false;
  const cudaError_t error = SumBlocksOfRows(stream, type, partial, blocks);
  if (error != cudaSuccess) return error;
  ColumnSumsArguments total = a;
  total.rows = blocks.count;
  total.matrix = a.workspace;
  return SumBlocksOfRows(stream, ElementType::kFloat32, total, {blocks.count, 1});
}

}  // namespace stagecoach::kernels
