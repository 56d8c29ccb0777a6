#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

// For matrices with fewer rows, or columns, than a tile: a block moves all of these along a part of
// the others through shared memory, so that it reads and writes neighbors.
constexpr int kShort = kTile / 2;  // below this
constexpr int kAlong = 512;

// One side has the strip's numbers in a row, in the order of the strip; the other, `few` pieces. A
// thread moves N neighbors at a time; with more than one, `many` is a multiple of N.
template <typename T, int N, bool kFewRows>
__global__ void __launch_bounds__(kThreads) StripKernel(const Matrices m, const T* x, T* y) {
  T* const strip = SharedMemory<T>();
  const int few = static_cast<int>(kFewRows ? m.rows : m.columns);
  const int64_t many = kFewRows ? m.columns : m.rows;
  const int64_t parts = (many + kAlong - 1) / kAlong;
  constexpr int kPiece = kAlong / N;  // vectors
  for (int64_t i = blockIdx.x; i < m.count * parts; i += gridDim.x) {
    const int64_t n = i / parts, first = (i - n * parts) * kAlong;
    const int along = static_cast<int>(many - first < kAlong ? many - first : kAlong);
    const T* const from = x + n * few * many + (kFewRows ? first : first * few);
    T* const to = y + n * few * many + (kFewRows ? first * few : first);
    for (int k = static_cast<int>(threadIdx.x); k < few * kPiece; k += kThreads) {
      const int piece = k / kPiece, place = k % kPiece * N;
      if constexpr (kFewRows) {
        if (place >= along) continue;
        const Packed<T, N> packed = LoadPacked<T, N>(from + piece * many + place);
        T each[N];
        memcpy(static_cast<void*>(each), &packed, sizeof(packed));
#pragma unroll
        for (int j = 0; j < N; ++j) strip[(place + j) * few + piece] = each[j];
      } else {
        if (k * N < few * along) {
          reinterpret_cast<Packed<T, N>*>(strip)[k] = LoadPacked<T, N>(from + k * N);
        }
      }
    }
    __syncthreads();
    for (int k = static_cast<int>(threadIdx.x); k < few * kPiece; k += kThreads) {
      const int piece = k / kPiece, place = k % kPiece * N;
      if constexpr (kFewRows) {
        if (k * N < few * along) {
          StorePacked<T, N>(to + k * N, reinterpret_cast<const Packed<T, N>*>(strip)[k]);
        }
      } else {
        if (place >= along) continue;
        T each[N];
#pragma unroll
        for (int j = 0; j < N; ++j) each[j] = strip[(place + j) * few + piece];
        Packed<T, N> packed;
        memcpy(&packed, each, sizeof(packed));
        StorePacked<T, N>(to + piece * many + place, packed);
      }
    }
    __syncthreads();
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
  if (std::min(m.rows, m.columns) < kShort) {
    const int64_t strips = m.count * ((std::max(m.rows, m.columns) + kAlong - 1) / kAlong);
    const bool has_few_rows = m.rows < m.columns;
    const int64_t few = has_few_rows ? m.rows : m.columns;
    const auto launch = [&](auto width) {
      constexpr int N = decltype(width)::value;
      return Launch(has_few_rows ? StripKernel<T, N, true> : StripKernel<T, N, false>, grid(strips),
                    dim3(kThreads), static_cast<size_t>(few * kAlong) * sizeof(T), stream, m, from,
                    to);
    };
    constexpr int kWidth = kVectorWidth<T>;
    const bool in_vectors =
        std::max(m.rows, m.columns) % kWidth == 0 && AlignedForVectors(x, y);
    return in_vectors ? launch(std::integral_constant<int, kWidth>())
                      : launch(std::integral_constant<int, 1>());
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
