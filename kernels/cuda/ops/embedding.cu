#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/embedding_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__device__ bool IsInVocabulary(int id, int64_t vocabulary) { return id >= 0 && id < vocabulary; }

// A thread has one vector of y; a row has `row_vectors`.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    EmbeddingForwardKernel(const EmbeddingForwardArguments a, int64_t row_vectors) {
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t n = vector / row_vectors;
  if (n >= a.ids_count) return;
  const int64_t c = (vector - n * row_vectors) * N;
  const int id = a.ids[n];
  float values[N];
  if (!IsInVocabulary(id, a.vocabulary)) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = NAN;
  } else {
    Load(static_cast<const T*>(a.tokens) + id * a.features + c, values);
    if (a.position_table != nullptr) {
      float position[N];
      Load(static_cast<const T*>(a.position_table) + n % a.positions * a.features + c, position);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += position[i];
    }
  }
  Store(static_cast<T*>(a.y) + n * a.features + c, values);
}

// A warp adds up 32 N columns of all rows that have the id of row blockIdx.x, if that is the first
// of them: so each element is summed by one thread, in the order of rows.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    EmbeddingBackwardKernel(const EmbeddingBackwardArguments a) {
  const int64_t first = blockIdx.x;
  const int id = a.ids[first];
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
  if (!IsInVocabulary(id, a.vocabulary) || tile * kWarp * N >= a.features) return;
  for (int64_t begin = 0; begin < first; begin += kWarp) {
    const int64_t n = begin + threadIdx.x;
    if (__any_sync(kAllLanes, n < first && a.ids[n] == id)) return;
  }
  const int64_t c = (tile * kWarp + threadIdx.x) * N;
  const bool has_columns = c < a.features;
  float* const to = a.dtokens + id * a.features + c;
  float sum[N] = {};
  if (has_columns && a.accumulate) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = to[i];
  }
  for (int64_t begin = first; begin < a.ids_count; begin += kWarp) {
    const int64_t n = begin + threadIdx.x;
    unsigned matches = __ballot_sync(kAllLanes, n < a.ids_count && a.ids[n] == id);
    for (; matches != 0 && has_columns; matches &= matches - 1) {
      const int64_t row = begin + __ffs(static_cast<int>(matches)) - 1;
      float values[N];
      Load(static_cast<const T*>(a.dy) + row * a.features + c, values);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += values[i];
    }
  }
  if (!has_columns) return;
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = sum[i];
}

}  // namespace

cudaError_t LaunchEmbeddingForward(cudaStream_t stream, ElementType type,
                                   const EmbeddingForwardArguments& a) {
  const auto vectors = [&](int width) {
    return a.features % width == 0 && AlignedForVectors(a.tokens, a.position_table, a.y);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    const int64_t row_vectors = a.features / width();
    const int64_t blocks = (a.ids_count * row_vectors + kThreads - 1) / kThreads;
    return Launch(EmbeddingForwardKernel<decltype(element), decltype(width)::value>,
                  dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, a, row_vectors);
  });
}

cudaError_t LaunchEmbeddingBackward(cudaStream_t stream, ElementType type,
                                    const EmbeddingBackwardArguments& a) {
  if (!a.accumulate) {
    const auto bytes = static_cast<size_t>(a.vocabulary * a.features) * sizeof(float);
    const cudaError_t error = cudaMemsetAsync(a.dtokens, 0, bytes, stream);
    if (error != cudaSuccess) return error;
  }
  const auto vectors = [&](int width) {
    return a.features % width == 0 && AlignedForVectors(a.dy);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    const int64_t tiles = (a.features + kWarp * width() - 1) / (kWarp * width());
    const int64_t warps = std::min<int64_t>(tiles, kWarps);
    const dim3 grid(static_cast<unsigned>(a.ids_count),
                    static_cast<unsigned>((tiles + warps - 1) / warps));
    return Launch(EmbeddingBackwardKernel<decltype(element), decltype(width)::value>, grid,
                  dim3(kWarp, static_cast<unsigned>(warps)), 0, stream, a);
  });
}

}  // namespace stagecoach::kernels
