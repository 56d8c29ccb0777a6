#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/exponential.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/swiglu_kernels.h"
#include "kernels/math.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
// Rows of a thread, whose reads overlap, and for which it computes its place once.
constexpr int kThreadRows = 2;

struct SiluOfHalf {
  static __device__ float Gate(float a) { return FastLogisticGate(FlushedExp(-a)); }
  // Returns the derivative of `value`, which is a times its gate.
  static __device__ float Derivative(float /*a*/, float gate, float value) {
    return gate + value * (1.0F - gate);
  }
};
struct GeluOfHalf {
  static __device__ float Gate(float a) { return GeluGateOf(a); }
  static __device__ float Derivative(float a, float gate, float /*value*/) {
    return GeluDerivative(a, gate);
  }
};

// N columns of a row as they lie in memory.
template <typename T, int N>
struct Operands {
  Packed<T, N> a, b, dy;
};

// A thread has the columns of one vector in kThreadRows rows. A block has threadIdx.x along a row,
// and the rows of a group, the number of which is in blockIdx.y and .z.
template <typename T, int N, typename Half, bool kBackward>
__global__ void __launch_bounds__(kThreads) SwiGluKernel(const SwiGluArguments args) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (column >= args.features) return;
  const int64_t group = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  const int64_t first = (group * blockDim.y + threadIdx.y) * kThreadRows;
  const T* const x = static_cast<const T*>(args.x) + first * 2 * args.features + column;
  const T* const dy =
      kBackward ? static_cast<const T*>(args.dy) + first * args.features + column : nullptr;
  Operands<T, N> operands[kThreadRows];
#pragma unroll
  for (int j = 0; j < kThreadRows; ++j) {
    if (first + j >= args.rows) continue;
    operands[j].a = LoadPacked<T, N>(x + j * 2 * args.features);
    operands[j].b = LoadPacked<T, N>(x + (j * 2 + 1) * args.features);
    if constexpr (kBackward) operands[j].dy = LoadPacked<T, N>(dy + j * args.features);
  }
#pragma unroll
  for (int j = 0; j < kThreadRows; ++j) {
    if (first + j >= args.rows) continue;
    float a[N], b[N];
    Unpack<T, N>(operands[j].a, a);
    Unpack<T, N>(operands[j].b, b);
    if constexpr (!kBackward) {
#pragma unroll
      for (int i = 0; i < N; ++i) b[i] = a[i] * Half::Gate(a[i]) * b[i];
      Store(static_cast<T*>(args.y) + (first + j) * args.features + column, b);
    } else {
      float gradient[N];
      Unpack<T, N>(operands[j].dy, gradient);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float gate = Half::Gate(a[i]);
        const float value = a[i] * gate;
        a[i] = gradient[i] * b[i] * Half::Derivative(a[i], gate, value);
        b[i] = gradient[i] * value;
      }
      T* const dx = static_cast<T*>(args.dx) + (first + j) * 2 * args.features + column;
      Store(dx, a);
      Store(dx + args.features, b);
    }
  }
}

template <typename Half, bool kBackward>
cudaError_t LaunchGate(cudaStream_t stream, ElementType type, const SwiGluArguments& args) {
  const auto vectors = [&](int width) {
    return args.features % width == 0 && AlignedForVectors(args.x, args.y, args.dy, args.dx);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    constexpr int64_t kMostGroups = 65535;  // along an axis of the grid
    const int64_t columns = args.features / width();
    const auto across = static_cast<unsigned>(std::min<int64_t>(columns, kThreads));
    const dim3 block(across, kThreads / across);
    const int64_t group_rows = int64_t{block.y} * kThreadRows;
    const int64_t groups = (args.rows + group_rows - 1) / group_rows;
    const dim3 grid(static_cast<unsigned>((columns + across - 1) / across),
                    static_cast<unsigned>(std::min(groups, kMostGroups)),
                    static_cast<unsigned>((groups + kMostGroups - 1) / kMostGroups));
    return Launch(SwiGluKernel<decltype(element), decltype(width)::value, Half, kBackward>, grid,
                  block, 0, stream, args);
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
