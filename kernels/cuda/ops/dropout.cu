#include <cuda_runtime.h>

#include "base/philox.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/dropout_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;

// A thread has one group of kGroup elements of a sample, which has `groups`: with vectors, a
// vector; otherwise as many elements as one block of words serves.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    DropoutKernel(const DropoutArguments a, int64_t groups) {
  constexpr int kGroup = N == 1 ? 4 : N;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t r = index / groups;
  if (r >= a.rows) return;
  const int64_t e = (index - r * groups) * kGroup;
  const T* const x = static_cast<const T*>(a.x) + r * a.elements + e;
  T* const y = static_cast<T*>(a.y) + r * a.elements + e;
  const int64_t sample = (a.first_sample == nullptr ? 0 : *a.first_sample) + r;
  const uint64_t first_block =
      static_cast<uint64_t>(sample) * static_cast<uint64_t>((a.elements + 3) / 4) +
      static_cast<uint64_t>(e / 4);
  float values[kGroup] = {};
  if constexpr (N > 1) {
    Load(x, values);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (e + i < a.elements) values[i] = ToFloat(x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kGroup; i += 4) {
    const base::PhiloxWords words = base::PhiloxBlock(
        base::PhiloxCounterOf(a.random_stream, first_block + i / 4), base::PhiloxKeyOf(a.seed));
    values[i] = words.w0 < a.threshold ? 0.0F : values[i] * a.scale;
    values[i + 1] = words.w1 < a.threshold ? 0.0F : values[i + 1] * a.scale;
    values[i + 2] = words.w2 < a.threshold ? 0.0F : values[i + 2] * a.scale;
    values[i + 3] = words.w3 < a.threshold ? 0.0F : values[i + 3] * a.scale;
  }
  if constexpr (N > 1) {
    Store(y, values);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (e + i < a.elements) y[i] = FromFloat<T>(values[i]);
    }
  }
}

}  // namespace

cudaError_t LaunchDropout(cudaStream_t stream, ElementType type, const DropoutArguments& a) {
  const auto vectors = [&](int width) {
    return a.elements % width == 0 && AlignedForVectors(a.x, a.y);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    constexpr int N = decltype(width)::value;
    constexpr int64_t kGroup = N == 1 ? 4 : N;
    const int64_t groups = (a.elements + kGroup - 1) / kGroup;
    const int64_t blocks = (a.rows * groups + kThreads - 1) / kThreads;
    return Launch(DropoutKernel<decltype(element), N>, dim3(static_cast<unsigned>(blocks)),
                  dim3(kThreads), 0, stream, a, groups);
  });
}

}  // namespace stagecoach::kernels
