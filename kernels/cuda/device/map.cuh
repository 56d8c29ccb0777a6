#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_MAP_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_MAP_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/vector.cuh"

// Computes y[i] = function(a[i], b[i]) over arrays of any length. y may be a or b.
namespace stagecoach::kernels {

inline constexpr int kMapThreads = 256;
inline constexpr int kMapVectors = 4;  // of each operand that a thread has in flight

// `Function` is a stateless callable float(float, float).
template <typename T, int N, typename Function>
__global__ void __launch_bounds__(kMapThreads)
    MapKernel(int64_t elements, const T* a, const T* b, T* y) {
  const int64_t vectors = elements / N;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (kMapThreads * kMapVectors) + threadIdx.x;
  float a_values[kMapVectors][N], b_values[kMapVectors][N];
#pragma unroll
  for (int k = 0; k < kMapVectors; ++k) {
    const int64_t vector = first + k * kMapThreads;
    if (vector < vectors) {
      Load(a + vector * N, a_values[k]);
      Load(b + vector * N, b_values[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kMapVectors; ++k) {
    const int64_t vector = first + k * kMapThreads;
    if (vector < vectors) {
      float y_values[N];
#pragma unroll
      for (int i = 0; i < N; ++i) y_values[i] = Function()(a_values[k][i], b_values[k][i]);
      Store(y + vector * N, y_values);
    } else if (vector == vectors) {  // the rest is less than a vector
      for (int64_t i = vector * N; i < elements; ++i) {
        y[i] = FromFloat<T>(Function()(ToFloat(a[i]), ToFloat(b[i])));
      }
    }
  }
}

template <typename Function>
cudaError_t LaunchMap(cudaStream_t stream, ElementType type, int64_t elements, const void* a,
                      const void* b, void* y) {
  if (elements == 0) return cudaSuccess;
  const auto vectors = [&](int) { return AlignedForVectors(a, b, y); };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    constexpr int64_t kBlockVectors = kMapThreads * kMapVectors;
    // There is one thread more than whole vectors, for the rest.
    const int64_t blocks = elements / N / kBlockVectors + 1;
    return Launch(MapKernel<T, N, Function>, dim3(static_cast<unsigned>(blocks)), dim3(kMapThreads),
                  0, stream, elements, static_cast<const T*>(a), static_cast<const T*>(b),
                  static_cast<T*>(y));
  });
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_MAP_CUH_
