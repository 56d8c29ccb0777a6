#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/concat_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 16;

// A thread has N neighbors of `whole` at a time, which all belong to one part. Null parts are
// skipped.
template <typename T, int N, bool kJoins, typename Part, typename Whole>
__global__ void __launch_bounds__(kThreads)
    ConcatKernel(const ConcatExtents e, Part* first, Part* second, Whole* whole) {
  const int64_t columns = (e.first + e.second) / N, vectors = e.rows * columns;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += stride) {
    const int64_t row = i / columns, column = (i - row * columns) * N;
    const bool is_first = column < e.first;
    Part* const part = is_first ? first : second;
    if (part == nullptr) continue;
    Part* const at = part + (is_first ? row * e.first + column : row * e.second + column - e.first);
    float values[N];
    if constexpr (kJoins) {
      Load(at, values);
      Store(whole + i * N, values);
    } else {
      Load(whole + i * N, values);
      Store(at, values);
    }
  }
}

template <typename T, int N, bool kJoins, typename Part, typename Whole>
cudaError_t LaunchConcat(cudaStream_t stream, const ConcatExtents& e, Part* first, Part* second,
                         Whole* whole) {
  const int64_t vectors = e.rows * ((e.first + e.second) / N);
  const int64_t blocks = std::min((vectors + kThreads - 1) / kThreads, kMostBlocks);
  return Launch(ConcatKernel<T, N, kJoins, Part, Whole>, dim3(static_cast<unsigned>(blocks)),
                dim3(kThreads), 0, stream, e, first, second, whole);
}

template <typename T, bool kJoins, typename Part, typename Whole>
cudaError_t LaunchConcatOf(cudaStream_t stream, const ConcatExtents& e, Part* first, Part* second,
                           Whole* whole) {
  constexpr int kWidth = kVectorWidth<T>;
  if (e.first % kWidth == 0 && e.second % kWidth == 0 && AlignedForVectors(first, second, whole)) {
    return LaunchConcat<T, kWidth, kJoins>(stream, e, first, second, whole);
  }
  return LaunchConcat<T, 1, kJoins>(stream, e, first, second, whole);
}

template <typename T>
cudaError_t LaunchJoinOf(cudaStream_t stream, const ConcatExtents& e, const void* first,
                         const void* second, void* whole) {
  return LaunchConcatOf<T, true>(stream, e, static_cast<const T*>(first),
                                 static_cast<const T*>(second), static_cast<T*>(whole));
}

template <typename T>
cudaError_t LaunchSplitOf(cudaStream_t stream, const ConcatExtents& e, const void* whole,
                          void* first, void* second) {
  return LaunchConcatOf<T, false>(stream, e, static_cast<T*>(first), static_cast<T*>(second),
                                  static_cast<const T*>(whole));
}

}  // namespace

cudaError_t LaunchJoin(cudaStream_t stream, ElementType type, const ConcatExtents& extents,
                       const void* first, const void* second, void* whole) {
  return type == ElementType::kFloat32
             ? LaunchJoinOf<float>(stream, extents, first, second, whole)
             : LaunchJoinOf<__nv_bfloat16>(stream, extents, first, second, whole);
}

cudaError_t LaunchSplit(cudaStream_t stream, ElementType type, const ConcatExtents& extents,
                        const void* whole, void* first, void* second) {
  return type == ElementType::kFloat32
             ? LaunchSplitOf<float>(stream, extents, whole, first, second)
             : LaunchSplitOf<__nv_bfloat16>(stream, extents, whole, first, second);
}

}  // namespace stagecoach::kernels
