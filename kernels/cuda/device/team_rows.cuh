#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_TEAM_ROWS_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_TEAM_ROWS_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cuda/device/async_copy.cuh"
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
// all vectors of the row, where a thread finds what the first pass left, so that no barrier is
// needed: vectors of 16 bytes are all on their way there before the first pass uses one. The second
// pass may overwrite the row, each thread its own vectors.
template <typename T, int N, bool kKeep>
class TwiceReadRow {
 public:
  // The last vector may extend beyond the last column, where there is memory for it. Columns are at
  // most 2^30.
  __device__ TwiceReadRow(int64_t columns, const T* row, Packed<T, N>* kept)
      : vectors_(static_cast<int>((columns + N - 1) / N)), row_(row), kept_(kept) {}

  // Call visit(column, values) for each vector that the thread has, in order.
  template <typename Visit>
  __device__ void First(Visit visit) const {
    if constexpr (kCopies) {
      CopyAndVisit(visit, std::make_integer_sequence<int, kGroups>());
    } else {
      Pass(visit);
    }
  }
  template <typename Visit>
  __device__ void Second(Visit visit) const {
    if constexpr (kKeep) {
      int vector = static_cast<int>(threadIdx.x);
      VisitKept(visit, vectors_, vector);
    } else {
      Pass(visit);
    }
  }
  // Returns the vector at a column again, which the thread had in the first pass.
  __device__ Packed<T, N> At(int column) const {
    return kKeep ? kept_[column / N] : LoadPacked<T, N>(row_ + column);
  }

 private:
  static constexpr int kBatch = 4;
  static constexpr int kGroups = 4;
  static constexpr bool kCopies = kKeep && sizeof(Packed<T, N>) == 16;

  template <typename Visit, int... kGroup>
  __device__ void CopyAndVisit(Visit visit, std::integer_sequence<int, kGroup...> /*groups*/) const {
    const int step = static_cast<int>(blockDim.x);
    const int span = (vectors_ + kGroups * step - 1) / (kGroups * step) * step;
    for (int group = 0, vector = static_cast<int>(threadIdx.x); group < kGroups; ++group) {
      for (const int end = min((group + 1) * span, vectors_); vector < end; vector += step) {
        CopyAsync(kept_ + vector, row_ + static_cast<int64_t>(vector) * N, true);
      }
      CommitCopies();
    }
    int vector = static_cast<int>(threadIdx.x);
    (VisitGroup<kGroups - 1 - kGroup>(visit, min((kGroup + 1) * span, vectors_), vector), ...);
  }
  // Visits the vectors before `end`, of a group after which kLater may still be on their way.
  template <int kLater, typename Visit>
  __device__ void VisitGroup(Visit visit, int end, int& vector) const {
    WaitForCopies<kLater>();
    VisitKept(visit, end, vector);
  }
  template <typename Visit>
  __device__ void VisitKept(Visit visit, int end, int& vector) const {
    for (; vector < end; vector += static_cast<int>(blockDim.x)) {
      float values[N];
      Unpack<T, N>(kept_[vector], values);
      visit(vector * N, values);
    }
  }

  // Visits vectors in memory, and keeps them if there is a place for them.
  template <typename Visit>
  __device__ void Pass(Visit visit) const {
    const int step = static_cast<int>(blockDim.x);
    for (int first = static_cast<int>(threadIdx.x); first < vectors_; first += kBatch * step) {
      Packed<T, N> batch[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int vector = first + k * step;
        if (vector >= vectors_) continue;
        batch[k] = LoadPacked<T, N>(row_ + static_cast<int64_t>(vector) * N);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int vector = first + k * step;
        if (vector >= vectors_) continue;
        if constexpr (kKeep) kept_[vector] = batch[k];
        float values[N];
        Unpack<T, N>(batch[k], values);
        visit(vector * N, values);
      }
    }
  }

  const int vectors_;
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
