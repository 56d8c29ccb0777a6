#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/tokens/head_choice.cuh"
#include "kernels/cuda/ops/tokens/head_choice_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kChoiceThreads = 1024;

// There is one block: the row is a few hundred kilobytes, and has just been written.
template <typename T, int N>
__global__ void __launch_bounds__(kChoiceThreads)
    HeadChoiceKernel(const T* logits, const HeadChoice choice) {
  Located largest = NoneFound();
  const TwiceReadRow<T, N, false> row(choice.classes, logits, nullptr);
  row.First([&](int c, float(&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (c + i < choice.classes) Consider(values[i], c + i, largest);
    }
  });
  largest = TeamReduce(
      largest, [](Located a, Located b) { return FirstLargest(a, b); }, SharedMemory<Located>());
  if (threadIdx.x == 0) StoreChoice(largest, choice);
}

}  // namespace

cudaError_t LaunchHeadChoice(cudaStream_t stream, ElementType type, const void* logits,
                             const HeadChoice& choice) {
  const auto launch = [&](auto element) {
    using T = decltype(element);
    constexpr int N = kVectorWidth<T>;
    const int64_t warps = (choice.classes + N * kWarp - 1) / (N * kWarp);
    const auto threads = static_cast<unsigned>(std::min(warps * kWarp, kChoiceThreads));
    return Launch(HeadChoiceKernel<T, N>, dim3(1), dim3(threads), kMaxWarps * sizeof(Located),
                  stream, static_cast<const T*>(logits), choice);
  };
  return type == ElementType::kFloat32 ? launch(float{}) : launch(__nv_bfloat16{});
}

}  // namespace stagecoach::kernels
