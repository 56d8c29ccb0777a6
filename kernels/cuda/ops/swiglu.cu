#include <cuda_runtime.h>

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/swiglu_kernels.h"
#include "kernels/math.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;

struct SiluOfHalf {
  static __device__ float Gate(float a) { return LogisticGate(__expf(-a)); }
  static __device__ float Derivative(float a, float gate) { return SiluDerivative(a, gate); }
};
struct GeluOfHalf {
  static __device__ float Gate(float a) { return GeluGateOf(a); }
  static __device__ float Derivative(float a, float gate) { return GeluDerivative(a, gate); }
};

// A thread has one vector of y, or of dy; a row has `row_vectors`.
template <typename T, int N, typename Half, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(const SwiGluArguments args, int64_t row_vectors) {
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t r = vector / row_vectors;
  if (r >= args.rows) return;
  const int64_t at_a = r * 2 * args.features + (vector - r * row_vectors) * N;
  const int64_t at_b = at_a + args.features;
  float a[N], b[N], y[N];
  Load(static_cast<const T*>(args.x) + at_a, a);
  Load(static_cast<const T*>(args.x) + at_b, b);
  if constexpr (!kBackward) {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = a[i] * Half::Gate(a[i]) * b[i];
    Store(static_cast<T*>(args.y) + vector * N, y);
  } else {
    float dy[N];
    Load(static_cast<const T*>(args.dy) + vector * N, dy);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gate = Half::Gate(a[i]);
      y[i] = dy[i] * a[i] * gate;
      a[i] = dy[i] * b[i] * Half::Derivative(a[i], gate);
    }
    Store(static_cast<T*>(args.dx) + at_a, a);
    Store(static_cast<T*>(args.dx) + at_b, y);
  }
}

template <typename Half, bool kBackward>
cudaError_t LaunchGate(cudaStream_t stream, ElementType type, const SwiGluArguments& args) {
  const auto vectors = [&](int width) {
    return args.features % width == 0 && AlignedForVectors(args.x, args.y, args.dy, args.dx);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    const int64_t row_vectors = args.features / width();
    const int64_t blocks = (args.rows * row_vectors + kThreads - 1) / kThreads;
    return Launch(SwiGluKernel<decltype(element), decltype(width)::value, Half, kBackward>,
                  dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, args,
                  row_vectors);
  });
}

template <bool kBackward>
cudaError_t LaunchSwiGlu(cudaStream_t stream, ElementType type, const SwiGluArguments& args) {
  return args.gate == GluGate::kGelu ? LaunchGate<GeluOfHalf, kBackward>(stream, type, args)
                                     : LaunchGate<SiluOfHalf, kBackward>(stream, type, args);
}

}  // namespace

cudaError_t LaunchSwiGluForward(cudaStream_t stream, ElementType type,
                                const SwiGluArguments& arguments) {
  return LaunchSwiGlu<false>(stream, type, arguments);
}

cudaError_t LaunchSwiGluBackward(cudaStream_t stream, ElementType type,
                                 const SwiGluArguments& arguments) {
  return LaunchSwiGlu<true>(stream, type, arguments);
}

}  // namespace stagecoach::kernels
