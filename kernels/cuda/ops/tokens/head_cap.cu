#include <cuda_runtime.h>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/tokens/head_cap_kernels.h"
#include "kernels/math.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;

// A thread has one vector. What is behind the last whole one has a thread for each number.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) HeadCapKernel(float cap, int64_t elements, T* z) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto capped = [cap](float value) {
    const float t = value / cap;
    return cap * TanhOf(t, __expf(TanhExponent(t))) + 0.0F * value;
  };
  const int64_t vectors = elements / N;
  if (i < vectors) {
    float values[N];
    Load(z + i * N, values);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = capped(values[k]);
    Store(z + i * N, values);
  } else if (const int64_t last = vectors * N + (i - vectors); last < elements) {
    z[last] = FromFloat<T>(capped(ToFloat(z[last])));
  }
}

}  // namespace

cudaError_t LaunchHeadCap(cudaStream_t stream, ElementType type, float cap, int64_t elements,
                          void* z) {
  const auto vectors = [&](int) { return AlignedForVectors(z); };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const int64_t blocks = (elements / N + elements % N + kThreads - 1) / kThreads;
    return Launch(HeadCapKernel<T, N>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
                  stream, cap, elements, static_cast<T*>(z));
  });
}

}  // namespace stagecoach::kernels
