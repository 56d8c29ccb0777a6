#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/map.cuh"
#include "kernels/cuda/ops/activation_kernels.h"

namespace stagecoach::kernels {
namespace {

template <typename Function>
struct OfSum {
  __device__ float operator()(float a, float b) const { return Function::Of(a + b); }
};
// Each thread has vectors that are kMapThreads apart, of rows of `row_vectors` vectors; `step` is
// kMapThreads modulo row_vectors, which saves all divisions but one.
template <typename T, int N, typename Function>
__global__ void __launch_bounds__(kMapThreads)
    BiasKernel(const BiasArguments a, int64_t vectors, int64_t row_vectors, int64_t step) {
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (kMapThreads * kMapVectors) + threadIdx.x;
  int64_t in_row = first % row_vectors;
  float z[kMapVectors][N], bias[kMapVectors][N] = {};
#pragma unroll
  for (int k = 0; k < kMapVectors; ++k) {
    const int64_t vector = first + k * kMapThreads;
    if (vector < vectors) {
      Load(static_cast<const T*>(a.product) + vector * N, z[k]);
      if (a.bias != nullptr) Load(static_cast<const T*>(a.bias) + in_row * N, bias[k]);
    }
    in_row += step;
    if (in_row >= row_vectors) in_row -= row_vectors;
  }
#pragma unroll
  for (int k = 0; k < kMapVectors; ++k) {
    const int64_t vector = first + k * kMapThreads;
    if (vector >= vectors) continue;
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      z[k][i] += bias[k][i];
      y[i] = Function::Of(z[k][i]);
    }
    if (a.z != nullptr) Store(static_cast<T*>(a.z) + vector * N, z[k]);
    Store(static_cast<T*>(a.y) + vector * N, y);
  }
}

template <typename Function>
cudaError_t LaunchBiasMap(cudaStream_t stream, ElementType type, const BiasArguments& a) {
  const auto vectors = [&](int width) {
    return a.columns % width == 0 && AlignedForVectors(a.product, a.bias, a.z, a.y);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    constexpr int64_t kBlockVectors = kMapThreads * kMapVectors;
    const int64_t row_vectors = a.columns / width();
    const int64_t all_vectors = a.rows * row_vectors;
    const int64_t blocks = (all_vectors + kBlockVectors - 1) / kBlockVectors;
    return Launch(BiasKernel<decltype(element), decltype(width)::value, Function>,
                  dim3(static_cast<unsigned>(blocks)), dim3(kMapThreads), 0, stream, a, all_vectors,
                  row_vectors, kMapThreads % row_vectors);
  });
}

}  // namespace

cudaError_t LaunchBias(cudaStream_t stream, ElementType type, Activation activation,
                       const BiasArguments& arguments) {
  return WithActivation(activation, [&](auto function) {
    return LaunchBiasMap<decltype(function)>(stream, type, arguments);
  });
}

cudaError_t LaunchActivationOfSum(cudaStream_t stream, ElementType type, Activation activation,
                                  int64_t elements, const void* a, const void* b, void* y) {
  return WithActivation(activation, [&](auto function) {
    return LaunchMap<OfSum<decltype(function)>>(stream, type, elements, a, b, y);
  });
}

}  // namespace stagecoach::kernels
