#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/columns_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 16;

// A thread has N neighbors of the part at a time. It adds `from`, the part, to the whole; or else
// takes the part from `from`, the whole.
template <typename T, int N, bool kAdds>
__global__ void __launch_bounds__(kThreads)
    ColumnsKernel(const ColumnsExtents e, const T* from, float scale, T* to) {
  const int64_t columns = e.count / N, vectors = e.rows * columns;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += stride) {
    const int64_t row = i / columns, column = (i - row * columns) * N;
    const int64_t in_part = i * N, in_whole = row * e.columns + e.first + column;
    T* const at = to + (kAdds ? in_whole : in_part);
    float values[N], sums[N];
    Load(from + (kAdds ? in_part : in_whole), values);
    if constexpr (kAdds) Load(at, sums);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      values[k] = __fmul_rn(scale, values[k]);
      if constexpr (kAdds) values[k] = __fadd_rn(sums[k], values[k]);
    }
    Store(at, values);
  }
}

template <bool kAdds>
cudaError_t LaunchColumns(cudaStream_t stream, ElementType type, const ColumnsExtents& e,
                          const void* from, float scale, void* to) {
  const auto vectors = [&](int width) {
    return e.columns % width == 0 && e.first % width == 0 && e.count % width == 0 &&
           AlignedForVectors(from, to);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const int64_t blocks =
        std::min((e.rows * (e.count / N) + kThreads - 1) / kThreads, kMostBlocks);
    return Launch(ColumnsKernel<T, N, kAdds>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                  0, stream, e, static_cast<const T*>(from), scale, static_cast<T*>(to));
  });
}

}  // namespace

cudaError_t LaunchAddColumns(cudaStream_t stream, ElementType type, const ColumnsExtents& extents,
                             const void* part, float scale, void* whole) {
  return LaunchColumns<true>(stream, type, extents, part, scale, whole);
}

cudaError_t LaunchTakeColumns(cudaStream_t stream, ElementType type, const ColumnsExtents& extents,
                              const void* whole, float scale, void* part) {
  return LaunchColumns<false>(stream, type, extents, whole, scale, part);
}

}  // namespace stagecoach::kernels
