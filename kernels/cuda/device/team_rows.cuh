#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_TEAM_ROWS_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_TEAM_ROWS_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vector.cuh"

// The layout of operations on the rows of a matrix: a row is the work of one team (reduce.cuh), a
// warp if the row is short and a block if it is not. A thread has the vectors of N columns with the
// numbers threadIdx.x, threadIdx.x + blockDim.x and so on.
namespace stagecoach::kernels {

inline constexpr int kMaxTeamThreads = 512;
inline constexpr int kWarpTeamsPerBlock = 4;

struct TeamLayout {
  dim3 grid, block;
};

// Returns the layout for rows of `vectors` vectors, of which a thread should have `share`.
inline TeamLayout LayOutTeams(int64_t rows, int64_t vectors, int64_t share) {
  const int64_t warps = (vectors + kWarp * share - 1) / (kWarp * share);
  if (warps <= 1) {
    const int64_t blocks = (rows + kWarpTeamsPerBlock - 1) / kWarpTeamsPerBlock;
    return {dim3(static_cast<unsigned>(blocks)), dim3(kWarp, kWarpTeamsPerBlock)};
  }
  const int64_t threads = std::min<int64_t>(warps * kWarp, kMaxTeamThreads);
  return {dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(threads))};
}

// Returns the row that the calling thread's team works on. Teams without a row, whose number is
// past the last one, are whole warps that may leave.
__device__ inline int64_t TeamRow() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

// A thread's part of a row, read once and kept in registers: at most kHeld vectors.
//   source(column, vector)    reads the `Vector` at a column
template <typename Vector, int N, int kHeld>
class HeldRow {
 public:
  HeldRow() = default;  // a row without columns
  template <typename Source>
  __device__ HeldRow(int64_t columns, const Source& source) : columns_(static_cast<int>(columns)) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (Column(k) < columns_) source(Column(k), vectors_[k]);
    }
  }

  // Calls visit(column, vector) for each vector that the thread has, in order.
  template <typename Visit>
  __device__ void ForEach(Visit visit) const {
    ForEachNumbered([&](int, int64_t column, const Vector& vector) { visit(column, vector); });
  }
  // Calls visit(k, column, vector) with the vector's number among the thread's.
  template <typename Visit>
  __device__ void ForEachNumbered(Visit visit) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (Column(k) < columns_) visit(k, Column(k), vectors_[k]);
    }
  }
  __device__ const Vector& operator[](int k) const { return vectors_[k]; }

 private:
  __device__ static int Column(int k) {
    return static_cast<int>(threadIdx.x + static_cast<unsigned>(k) * blockDim.x) * N;
  }

  int columns_ = 0;
  Vector vectors_[kHeld];
};

// A HeldRow for rows of any length: read anew by each ForEach, several vectors at a time so that
// their reads overlap.
template <typename Vector, int N, typename Source>
class StreamedRow {
 public:
  __device__ StreamedRow(int64_t columns, const Source& source)
      : columns_(columns), source_(source) {}

  template <typename Visit>
  __device__ void ForEach(Visit visit) const {
    ForEachNumbered([&](int, int64_t column, const Vector& vector) { visit(column, vector); });
  }
  template <typename Visit>
  __device__ void ForEachNumbered(Visit visit) const {
    const int64_t step = static_cast<int64_t>(blockDim.x) * N;
    int number = 0;
    for (int64_t first = static_cast<int64_t>(threadIdx.x) * N; first < columns_;
         first += kBatch * step, number += kBatch) {
      Vector batch[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (first + k * step < columns_) source_(first + k * step, batch[k]);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (first + k * step < columns_) visit(number + k, first + k * step, batch[k]);
      }
    }
  }

 private:
  static constexpr int kBatch = 4;

  const int64_t columns_;
  const Source source_;
};

// A row of elements of T that is passed over twice, as float32. The first pass reads it from memory
// as StreamedRow does. The second reads it there again or, if kKeep, from `kept`, shared memory for
// all vectors of the row, where a thread finds what it stored in the first pass, so that no barrier
// is needed. The second pass may overwrite the row, each thread its own vectors.
template <typename T, int N, bool kKeep>
class TwiceReadRow {
 public:
  // The last vector may extend beyond the last column, where there is memory for it.
  __device__ TwiceReadRow(int64_t columns, const T* row, Packed<T, N>* kept)
      : vectors_((columns + N - 1) / N), row_(row), kept_(kept) {}

  // Call visit(column, values) for each vector that the thread has, in order.
  template <typename Visit>
  __device__ void First(Visit visit) const {
    Pass<true>(visit);
  }
  template <typename Visit>
  __device__ void Second(Visit visit) const {
    Pass<false>(visit);
  }

 private:
  static constexpr int kBatch = 4;

  template <bool kIsFirst, typename Visit>
  __device__ void Pass(Visit visit) const {
    constexpr bool kReadsKept = kKeep && !kIsFirst;
    const int64_t step = blockDim.x;
    for (int64_t first = threadIdx.x; first < vectors_; first += kBatch * step) {
      Packed<T, N> batch[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int64_t vector = first + k * step;
        if (vector >= vectors_) continue;
        batch[k] = kReadsKept ? kept_[vector] : LoadPacked<T, N>(row_ + vector * N);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int64_t vector = first + k * step;
        if (vector >= vectors_) continue;
        if constexpr (kKeep && kIsFirst) kept_[vector] = batch[k];
        float values[N];
        Unpack<T, N>(batch[k], values);
        visit(vector * N, values);
      }
    }
  }

  const int64_t vectors_;
  const T* const row_;
  Packed<T, N>* const kept_;
};

// Makes the row type for rows of which a thread has at most kHeld vectors; 0: any number.
template <typename Vector, int N, int kHeld, typename Source>
__device__ auto MakeRow(int64_t columns, const Source& source) {
  if constexpr (kHeld > 0) {
    return HeldRow<Vector, N, kHeld>(columns, source);
  } else {
    return StreamedRow<Vector, N, Source>(columns, source);
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_TEAM_ROWS_CUH_
