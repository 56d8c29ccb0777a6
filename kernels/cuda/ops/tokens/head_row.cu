#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/linear/input_norm.cuh"
#include "kernels/cuda/ops/tokens/head_choice.cuh"
#include "kernels/cuda/ops/tokens/head_choice_kernels.h"

// Time is that of reading w once. A warp has kClasses rows of w at a time, and while it multiplies
// kVectors vectors of a lane, the next ones are on their way.
namespace stagecoach::kernels {
namespace {

using T = __nv_bfloat16;

constexpr int N = kVectorWidth<T>;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kClasses = 2;
constexpr int kVectors = 3;
constexpr int kBlocksEach = 3;  // of a multiprocessor, as the registers allow
// They fill a GPU of 132 multiprocessors.
constexpr int64_t kBlocks = int64_t{132} * kBlocksEach;

// Where a warp is: at a group of classes, and a group of vectors of their rows.
struct Step {
  int row, vector;
};
using Words = uint4[kClasses][kVectors];

template <bool kHasNorm>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    HeadRowKernel(const HeadRowArguments a, int classes) {
  LetNextKernelStart();
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int vectors = static_cast<int>(a.features) / N;
  const auto load = [&](const Step& step, Words& words) {
#pragma unroll
    for (int i = 0; i < kClasses; ++i) {
      const T* const row = static_cast<const T*>(a.w) + (step.row + i) * a.features;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const int vector = step.vector + k * kWarp + lane;
        const bool reads = step.row + i < classes && vector < vectors;
        words[i][k] =
            reads ? LoadPacked<T, N>(row + static_cast<int64_t>(vector) * N) : uint4{0, 0, 0, 0};
      }
    }
  };
  Step step = {(static_cast<int>(blockIdx.x) * kWarps + warp) * kClasses, 0};
  Words words;
  load(step, words);
  T* const x = SharedMemory<T>();
  auto* const scratch = reinterpret_cast<Located*>(x + vectors * N);
  BlockInputNorm norm(a.norm, a.x, 1, vectors * N, reinterpret_cast<float*>(scratch + kMaxWarps));
  if constexpr (kHasNorm) norm.AskForWeights();
  WaitForEarlierKernels();
  if constexpr (kHasNorm) {
    norm.AskForRows();
    norm.Prepare(0);
  }
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    *reinterpret_cast<uint4*>(x + i * N) =
        kHasNorm ? norm.Values(0, i * N) : LoadPacked<T, N>(static_cast<const T*>(a.x) + i * N);
  }
  __syncthreads();
  Located best = NoneFound();
  float sums[kClasses] = {};
  while (step.row < classes) {
    Step next = {step.row, step.vector + kVectors * kWarp};
    if (next.vector >= vectors) {
      next = {step.row + static_cast<int>(gridDim.x) * kWarps * kClasses, 0};
    }
    Words ahead;
    load(next, ahead);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = step.vector + k * kWarp + lane;
      if (vector >= vectors) continue;
      float of_x[N];
      Load(x + vector * N, of_x);
#pragma unroll
      for (int i = 0; i < kClasses; ++i) {
        float of_w[N];
        Unpack<T, N>(words[i][k], of_w);
#pragma unroll
        for (int j = 0; j < N; ++j) sums[i] += of_x[j] * of_w[j];
      }
    }
#pragma unroll
    for (int i = 0; i < kClasses; ++i) {
      if (next.vector == 0) {
        const float logit = WarpReduce(sums[i], [](float p, float q) { return p + q; });
        if (step.row + i < classes) Consider(ToFloat(FromFloat<T>(logit)), step.row + i, best);
        sums[i] = 0.0F;
      }
#pragma unroll
      for (int k = 0; k < kVectors; ++k) words[i][k] = ahead[i][k];
    }
    step = next;
  }
  best = TeamReduce(
      best, [](Located p, Located q) { return FirstLargest(p, q); }, scratch);
  if (threadIdx.x == 0) static_cast<Located*>(a.candidates)[blockIdx.x] = best;
}

__global__ void __launch_bounds__(kMaxWarps* kWarp)
    HeadCandidatesKernel(const Located* candidates, int count, const HeadChoice choice) {
  WaitForEarlierKernels();
  const int thread = static_cast<int>(threadIdx.x);
  Located largest = thread < count ? candidates[thread] : NoneFound();
  largest = TeamReduce(
      largest, [](Located p, Located q) { return FirstLargest(p, q); }, SharedMemory<Located>());
  if (thread == 0) StoreChoice(largest, choice);
}

int64_t BlocksFor(int64_t classes) {
  return std::min(kBlocks, (classes + kWarps * kClasses - 1) / (kWarps * kClasses));
}

}  // namespace

int64_t HeadRowSharedBytes(int64_t features, bool has_norm) {
  return features * static_cast<int64_t>(sizeof(T)) + kMaxWarps * sizeof(Located) +
         (has_norm ? BlockInputNorm::SharedBytes(1, features) : 0);
}

cudaError_t LaunchHeadRow(cudaStream_t stream, const HeadRowArguments& a,
                          const HeadChoice& choice) {
  const auto blocks = static_cast<unsigned>(BlocksFor(choice.classes));
  const bool has_norm = a.norm.gamma != nullptr;
  const cudaError_t error = LaunchEarly(
      a.starts_early, has_norm ? HeadRowKernel<true> : HeadRowKernel<false>, dim3(blocks),
      dim3(kThreads), static_cast<size_t>(HeadRowSharedBytes(a.features, has_norm)), stream, a,
      static_cast<int>(choice.classes));
  if (error != cudaSuccess) return error;
  const unsigned warps = (blocks + kWarp - 1) / kWarp;
  return LaunchEarly(a.starts_early, HeadCandidatesKernel, dim3(1), dim3(warps * kWarp),
                     kMaxWarps * sizeof(Located), stream, static_cast<const Located*>(a.candidates),
                     static_cast<int>(blocks), choice);
}

}  // namespace stagecoach::kernels
