#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/images/transpose_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;
constexpr int kPadded = kTile + 1;  // so that a column of a tile is spread over as many banks as it
                                    // has rows
constexpr int64_t kMostBlocks = 1 << 16;

struct Matrices {
  int64_t count, rows, columns;
};

// Made for matrices of few rows or columns: each element of y belongs to one thread. Neighbors read
// from few places at once, of which the cache keeps what the next ones read.
template <typename T>
__global__ void __launch_bounds__(kThreads) GatherKernel(const Matrices m, const T* x, T* y) {
  const int64_t of_each = m.rows * m.columns, elements = m.count * of_each;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += stride) {
    const int64_t n = i / of_each, within = i - n * of_each;
    const int64_t column = within / m.rows, row = within - column * m.rows;
    y[i] = x[n * of_each + row * m.columns + column];
  }
}

// A block moves one tile after another through shared memory, so that it reads and writes rows.
template <typename T>
__global__ void __launch_bounds__(kThreads) TilesKernel(const Matrices m, const T* x, T* y) {
  constexpr int kStep = kThreads / kTile;
  T* const tile = SharedMemory<T>();
  const int lane = static_cast<int>(threadIdx.x) % kTile;
  const int first = static_cast<int>(threadIdx.x) / kTile;
  const int64_t across = (m.columns + kTile - 1) / kTile, down = (m.rows + kTile - 1) / kTile;
  for (int64_t i = blockIdx.x; i < m.count * down * across; i += gridDim.x) {
    const int64_t n = i / (down * across), within = i - n * (down * across);
    const int64_t row = within / across * kTile, column = within % across * kTile;
    const T* const from = x + n * m.rows * m.columns;
    T* const to = y + n * m.rows * m.columns;
#pragma unroll
    for (int k = first; k < kTile; k += kStep) {
      if (row + k < m.rows && column + lane < m.columns) {
        tile[k * kPadded + lane] = from[(row + k) * m.columns + column + lane];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = first; k < kTile; k += kStep) {
      if (column + k < m.columns && row + lane < m.rows) {
        to[(column + k) * m.rows + row + lane] = tile[lane * kPadded + k];
      }
    }
    __syncthreads();
  }
}

template <typename T>
cudaError_t LaunchTransposeOf(cudaStream_t stream, const Matrices& m, const void* x, void* y) {
  const auto grid = [](int64_t blocks) {
    return dim3(static_cast<unsigned>(std::min(blocks, kMostBlocks)));
  };
  const T* const from = static_cast<const T*>(x);
  T* const to = static_cast<T*>(y);
  if (std::min(m.rows, m.columns) < kTile / 2) {
    return Launch(GatherKernel<T>, grid((m.count * m.rows * m.columns + kThreads - 1) / kThreads),
                  dim3(kThreads), 0, stream, m, from, to);
  }
  const int64_t tiles =
      m.count * ((m.rows + kTile - 1) / kTile) * ((m.columns + kTile - 1) / kTile);
  return Launch(TilesKernel<T>, grid(tiles), dim3(kThreads), kTile * kPadded * sizeof(T), stream, m,
                from, to);
}

}  // namespace

cudaError_t LaunchTranspose(cudaStream_t stream, ElementType type, int64_t matrices, int64_t rows,
                            int64_t columns, const void* x, void* y) {
  const Matrices m = {matrices, rows, columns};
  return type == ElementType::kFloat32 ? LaunchTransposeOf<float>(stream, m, x, y)
                                       : LaunchTransposeOf<__nv_bfloat16>(stream, m, x, y);
}

}  // namespace stagecoach::kernels
