#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/activation_kernels.h"
#include "kernels/cuda/ops/linear/column_sums_kernels.h"

// Computes the gradient of an activation, and sums over columns of it or of any matrix: R rows, O
// columns.
//
// The matrix is cut into tiles of 128 bytes of columns and a block of rows, one for each block of
// threads. A thread has every kRowThreads-th row of its block, from its first one on, and adds them
// up in that order; four such sums are added in pairs, and eight sums of four one after the other.
// The blocks' sums then form another matrix, whose columns are summed in the same way.
//
// The same instructions compute dz whether it is summed or not.
namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kColumnThreads = 8;  // side by side, with 16 bytes each
constexpr int kRowThreads = kThreads / kColumnThreads;

// The number of blocks that should fit on a multiprocessor: 48 registers each, or 64 if those would
// spill.
template <typename Function>
[[maybe_unused]] constexpr int kResidentBlocks =
    std::is_same_v<Function, GeluExactActivation> ? 4 : 5;

// Blocks of rows: `count` of them, with `rows` each, except perhaps the last.
struct RowBlocks {
  int64_t rows, count;
};

// Chooses the rows per block: a power of two, so that threads have equal numbers of rows; large
// enough that the sums are small compared with what is read, and small enough that a large GPU has
// enough blocks. If there is so much to read that blocks take turns, there are several for each
// place: 768 blocks on an H200's 660 places are two turns, the second of which is nearly empty (2.9
// of 4 TB/s).
RowBlocks CutRows(int64_t rows, int64_t columns) {
  constexpr int64_t kMinRows = 64, kLongRows = 256;
  constexpr int64_t kTileColumns = 64;  // of bfloat16
  constexpr int64_t kMostBlocks = 1152, kMostLongBlocks = 4608;
  const int64_t tiles = (columns + kTileColumns - 1) / kTileColumns;
  const auto count = [&](int64_t block_rows) { return (rows + block_rows - 1) / block_rows; };
  const auto are_too_many = [&](int64_t block_rows) {
    const int64_t most = block_rows < kLongRows ? kMostBlocks : kMostLongBlocks;
    return count(block_rows) > 1 && count(block_rows) * tiles > most;
  };
  int64_t block_rows = kMinRows;
  while (are_too_many(block_rows)) block_rows *= 2;
  return {block_rows, count(block_rows)};
}

struct Arguments {
  int64_t rows, columns;
  int64_t block_rows;
  const void* dy = nullptr;
  const void* known = nullptr;
  void* dz = nullptr;     // null: not written
  float* sums = nullptr;  // (blocks of rows, O); null: not summed
  bool accumulate = false;
};

// Writes `sums` of a thread's columns, column (k kColumnThreads + the thread's number) N + i of the
// tile. Must be called by all threads of a block.
template <int N, int kHeld>
__device__ void WriteSums(const Arguments& a, int64_t first_column, float (&sums)[kHeld][N]) {
  constexpr int kColumns = kColumnThreads * kHeld * N;
  const auto thread = static_cast<int>(threadIdx.x);
  float* const of_warps = SharedMemory<float>();  // (kWarps, kColumns)
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int distance = kColumnThreads; distance < kWarp; distance *= 2) {
        sums[k][i] += FromLane(sums[k][i], distance);
      }
      if (thread % kWarp < kColumnThreads) {
        of_warps[thread / kWarp * kColumns + (k * kColumnThreads + thread % kWarp) * N + i] =
            sums[k][i];
      }
    }
  }
  __syncthreads();
  if (thread >= kColumns || first_column + thread >= a.columns) return;
  float total = 0.0F;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += of_warps[warp * kColumns + thread];
  float* const to = a.sums + static_cast<int64_t>(blockIdx.y) * a.columns + first_column + thread;
  *to = a.accumulate ? *to + total : total;
}

// dz may be dy or known: all operands of a thread are read before its results are written, and no
// other thread has them.
template <typename T, int N, typename Function>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<Function>)
    ActivationBackwardKernel(const Arguments a) {
  constexpr bool kKnown = !std::is_same_v<Function, NoActivation>;
  constexpr int kHeld = kVectorWidth<T> / N;
  constexpr int kBatch = N == 1 ? 1 : 2;  // rows that a thread has in flight
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t first_column =
      static_cast<int64_t>(blockIdx.x) * (kColumnThreads * kVectorWidth<T>);
  const int64_t column = first_column + thread % kColumnThreads * N;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * a.block_rows;
  const int64_t end = begin + a.block_rows < a.rows ? begin + a.block_rows : a.rows;
  // Calls visit(j, k, offset of the vector) for the existing vectors of a batch.
  const auto for_each = [&](int64_t row, auto visit) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int64_t r = row + j * kRowThreads, c = column + k * (kColumnThreads * N);
        if (r < end && c < a.columns) visit(j, k, r * a.columns + c);
      }
    }
  };
  float sums[kHeld][N] = {};
  for (int64_t row = begin + thread / kColumnThreads; row < end; row += kBatch * kRowThreads) {
    Packed<T, N> dy[kBatch][kHeld], known[kBatch][kHeld];
    for_each(row, [&](int j, int k, int64_t offset) {
      dy[j][k] = LoadPacked<T, N>(static_cast<const T*>(a.dy) + offset);
      if constexpr (kKnown) known[j][k] = LoadPacked<T, N>(static_cast<const T*>(a.known) + offset);
    });
    for_each(row, [&](int j, int k, int64_t offset) {
      Packed<T, N> dz = dy[j][k];
      float values[N];
      if constexpr (kKnown) {
        float of[N];
        Unpack<T, N>(dy[j][k], values);
        Unpack<T, N>(known[j][k], of);
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = Function::Gradient(values[i], of[i]);
        dz = Pack<T, N>(values);
      }
      if (a.dz != nullptr) StorePacked<T, N>(static_cast<T*>(a.dz) + offset, dz);
      Unpack<T, N>(dz, values);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[k][i] += values[i];
    });
  }
  if (a.sums != nullptr) WriteSums<N, kHeld>(a, first_column, sums);
}

template <typename Function>
cudaError_t LaunchBackward(cudaStream_t stream, ElementType type, const Arguments& a) {
  const auto vectors = [&](int width) {
    return a.columns % width == 0 && AlignedForVectors(a.dy, a.known, a.dz);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kColumns = kColumnThreads * kVectorWidth<T>;
    const dim3 grid(static_cast<unsigned>((a.columns + kColumns - 1) / kColumns),
                    static_cast<unsigned>((a.rows + a.block_rows - 1) / a.block_rows));
    return Launch(ActivationBackwardKernel<T, decltype(width)::value, Function>, grid,
                  dim3(kThreads), sizeof(float) * kWarps * kColumns, stream, a);
  });
}

// Computes the sums of each block of rows.
cudaError_t LaunchSums(cudaStream_t stream, ElementType type, const void* matrix, int64_t rows,
                       int64_t columns, int64_t block_rows, float* sums, bool accumulate) {
  return LaunchBackward<NoActivation>(stream, type,
                                      {.rows = rows,
                                       .columns = columns,
                                       .block_rows = block_rows,
                                       .dy = matrix,
                                       .sums = sums,
                                       .accumulate = accumulate});
}

}  // namespace

cudaError_t LaunchActivationBackward(cudaStream_t stream, ElementType type, Activation activation,
                                     const ActivationBackwardArguments& a) {
  const Arguments arguments = {.rows = a.rows,
                               .columns = a.columns,
                               .block_rows = CutRows(a.rows, a.columns).rows,
                               .dy = a.dy,
                               .known = a.known,
                               .dz = a.dz,
                               .sums = a.partial_sums};
  return WithActivation(activation, [&](auto function) {
    return LaunchBackward<decltype(function)>(stream, type, arguments);
  });
}

int64_t PartialSumsBytes(int64_t rows, int64_t columns) {
  return CutRows(rows, columns).count * columns * static_cast<int64_t>(sizeof(float));
}

cudaError_t LaunchTotalSums(cudaStream_t stream, const TotalSumsArguments& a) {
  const int64_t blocks = CutRows(a.rows, a.columns).count;
  return LaunchSums(stream, ElementType::kFloat32, a.partial_sums, blocks, a.columns, blocks,
                    a.sums, a.accumulate);
}

int64_t ColumnSumsWorkspaceBytes(int64_t rows, int64_t columns) {
  return CutRows(rows, columns).count == 1 ? 0 : PartialSumsBytes(rows, columns);
}

cudaError_t LaunchColumnSums(cudaStream_t stream, ElementType type, const ColumnSumsArguments& a) {
  const RowBlocks blocks = CutRows(a.rows, a.columns);
  if (blocks.count == 1) {
    return LaunchSums(stream, type, a.matrix, a.rows, a.columns, blocks.rows, a.sums, a.accumulate);
  }
  const cudaError_t error =
      LaunchSums(stream, type, a.matrix, a.rows, a.columns, blocks.rows, a.workspace, false);
  if (error != cudaSuccess) return error;
  return LaunchTotalSums(stream, {.rows = a.rows,
                                  .columns = a.columns,
                                  .partial_sums = a.workspace,
                                  .sums = a.sums,
                                  .accumulate = a.accumulate});
}

}  // namespace stagecoach::kernels
