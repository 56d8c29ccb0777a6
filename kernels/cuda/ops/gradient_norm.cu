#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/optimizer_kernels.h"

// Norms of gradients, in double throughout. The sum of a parameter is computed in an order that
// depends on its own size alone, whatever else is in its group, so that a norm has the same bits
// however parameters are divided among devices.
namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;

__device__ void AddSquare(float value, double& sum) {
  sum += static_cast<double>(value) * static_cast<double>(value);
}

// There is one block per chunk. A thread adds the same elements in the same order whether or not
// they are read in vectors.
__global__ void __launch_bounds__(kThreads) ChunkSquaresKernel(const ParameterTable table) {
  const ParameterChunk chunk = table.chunks[blockIdx.x];
  const int elements = chunk.is_average ? 0 : chunk.elements;  // its sum is no gradient
  double sum = 0.0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < elements; i += kThreads * kVector) {
    if (chunk.aligned && i + kVector <= elements) {
      float values[kVector];
      Load(chunk.gradient + i, values);
#pragma unroll
      for (int k = 0; k < kVector; ++k) AddSquare(values[k], sum);
    } else {
      for (int k = 0; k < kVector && i + k < elements; ++k) {
        AddSquare(chunk.gradient[i + k], sum);
      }
    }
  }
  sum = TeamSum(sum, SharedMemory<double>());
  if (threadIdx.x == 0) table.partial_squares[blockIdx.x] = sum;
}

// There is one block per parameter.
__global__ void __launch_bounds__(kThreads)
    ParameterSquaresKernel(const ParameterTable table, double* squares) {
  const int end = table.first_chunk[blockIdx.x + 1];
  double sum = 0.0;
  for (int chunk = table.first_chunk[blockIdx.x] + static_cast<int>(threadIdx.x); chunk < end;
       chunk += kThreads) {
    sum += table.partial_squares[chunk];
  }
  sum = TeamSum(sum, SharedMemory<double>());
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// There is only one block. All threads fetch columns, one adds them up.
__global__ void __launch_bounds__(kThreads)
    ClipScaleKernel(const double* squares, int64_t rows, int64_t columns, float clip_norm,
                    double* norm, float* scale) {
  double* const tile = SharedMemory<double>();
  double total = 0.0;
  for (int64_t first = 0; first < columns; first += kThreads) {
    const int64_t column = first + threadIdx.x;
    double sum = 0.0;
    if (column < columns) {
      for (int64_t row = 0; row < rows; ++row) sum += squares[row * columns + column];
    }
    tile[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      const int64_t left = columns - first;
      const int count = static_cast<int>(left < kThreads ? left : kThreads);
#pragma unroll 8
      for (int i = 0; i < count; ++i) total += tile[i];
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const double root = sqrt(total);
  const double ratio = static_cast<double>(clip_norm) / root;
  *norm = root;
  *scale = !(root <= DBL_MAX) ? NAN : ratio < 1.0 ? static_cast<float>(ratio) : 1.0F;
}

}  // namespace

cudaError_t LaunchSquaredNorms(cudaStream_t stream, const ParameterTable& table, double* squares) {
  constexpr size_t kScratchBytes = kMaxWarps * sizeof(double);
  if (table.chunk_count > 0) {
    const cudaError_t error =
        Launch(ChunkSquaresKernel, dim3(static_cast<unsigned>(table.chunk_count)), dim3(kThreads),
               kScratchBytes, stream, table);
    if (error != cudaSuccess) return error;
  }
  if (table.parameter_count == 0) return cudaSuccess;
  return Launch(ParameterSquaresKernel, dim3(static_cast<unsigned>(table.parameter_count)),
                dim3(kThreads), kScratchBytes, stream, table, squares);
}

cudaError_t LaunchClipScale(cudaStream_t stream, const double* squares, int64_t rows,
                            int64_t columns, float clip_norm, double* norm, float* scale) {
  return Launch(ClipScaleKernel, dim3(1), dim3(kThreads), kThreads * sizeof(double), stream,
                squares, rows, columns, clip_norm, norm, scale);
}

}  // namespace stagecoach::kernels
