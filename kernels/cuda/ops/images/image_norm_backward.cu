#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/images/image_norm_kernels.h"
#include "kernels/cuda/ops/images/image_norm_rows.cuh"

// Batch norm and group norm backward. A first pass reads dy and x for the sums of dy and dy xhat
// over each column of a block of rows. From these come the gradients of gamma and beta (the sums of
// columns), and the means of g and g xhat of each set, from which a second pass computes dx. All
// gradients may be requested together or separately, and have the same bits, because the kernels
// are the same.
namespace stagecoach::kernels {
namespace {

using Arguments = ImageNormBackwardArguments;

constexpr int kRows = 2;  // of each operand that a thread has in flight

// The workspace: sums of dz and of dz xhat (segments, blocks, 2, C), and means of g and of g xhat,
// each (S), at addresses that are multiples of 16.
int64_t InQuads(int64_t elements) {
  constexpr int64_t kQuad = kVectorWidth<float>;
  return (elements + kQuad - 1) / kQuad * kQuad;
}
int64_t SumsElements(const ImageNormLayout& layout) {
  return InQuads(layout.partials() * 2 * layout.columns);
}

int64_t MeansElements(const ImageNormLayout& layout) { return InQuads(layout.sets()); }

struct Means {
  float* g;
  float* g_xhat;
};
Means MeansIn(const Arguments& a, const ImageNormLayout& layout) {
  float* const g = a.workspace + SumsElements(layout);
  return {g, g + MeansElements(layout)};
}

// The ReLU through which dy came: whether it passes is known from y, or from the norm, which is
// recomputed.
enum class Mask : uint8_t { kNone, kOfX, kOfY };

// Returns whether `value`, rounded to T, is above 0: half of the least number rounds to 0, and so
// does everything below.
template <typename T>
__device__ bool IsAboveZero(float value) {
  return value > (std::is_same_v<T, float> ? 0.0F : 0x1p-134F);
}

// A vector's dy and x, with the mask applied.
template <typename T, int N, Mask kMask>
struct Terms {
  float dz[N], rest[N];  // the part of dy that passes; x - mean

  // `scale` is gamma rstd.
  __device__ Terms(Packed<T, N> dy_packed, Packed<T, N> x_packed, Packed<T, N> y_packed,
                   const float (&mean)[N], const float (&scale)[N], const float (&beta)[N]) {
    float x[N], y[N];
    Unpack<T, N>(dy_packed, dz);
    Unpack<T, N>(x_packed, x);
    if constexpr (kMask == Mask::kOfY) Unpack<T, N>(y_packed, y);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      rest[i] = __fadd_rn(x[i], -mean[i]);
      bool passes = true;
      if constexpr (kMask == Mask::kOfX) {
        passes = IsAboveZero<T>(Normalized(x[i], mean[i], scale[i], beta[i]));
      }
      if constexpr (kMask == Mask::kOfY) passes = y[i] > 0.0F;
      dz[i] = passes ? dz[i] : 0.0F;
    }
  }
};

// The rows of a step, and their values.
template <typename T, int N, Mask kMask>
struct Step {
  using Part = ImagePart<T, N>;
  typename Part::Row dy[kRows], x[kRows], y[kMask == Mask::kOfY ? kRows : 1];

  __device__ Step(const Part& part, const Arguments& a, int first) {
    part.Read(a.dy, first, dy);
    part.Read(a.x, first, x);
    if constexpr (kMask == Mask::kOfY) part.Read(a.y, first, y);
  }
  __device__ Terms<T, N, kMask> At(int j, int k, const float (&mean)[N], const float (&scale)[N],
                                   const float (&beta)[N]) const {
    return {dy[j].vectors[k],
            x[j].vectors[k],
            y[kMask == Mask::kOfY ? j : 0].vectors[k],
            mean,
            scale,
            beta};
  }
};

// Adds the addend's rows of a step to those of dy, and rounds the sums.
template <typename T, int N>
__device__ void AddRows(const ImagePart<T, N>& part, const void* addend, int first,
                        typename ImagePart<T, N>::Row (&dy)[kRows]) {
  typename ImagePart<T, N>::Row addends[kRows];
  part.Read(addend, first, addends);
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
#pragma unroll
    for (int k = 0; k < ImagePart<T, N>::kHeld; ++k) {
      float sums[N], others[N];
      Unpack<T, N>(dy[j].vectors[k], sums);
      Unpack<T, N>(addends[j].vectors[k], others);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] = __fadd_rn(sums[i], others[i]);
      dy[j].vectors[k] = Pack<T, N>(sums);
    }
  }
}

// Writes the sums of the block's rows, and dz unless it is null. With kAdds, dy is a sum.
template <typename T, int N, Mask kMask, bool kAdds = false>
__global__ void __launch_bounds__(kImageThreads, kImageBlocksAtOnce)
    SumsKernel(const Arguments a, const ImageNormLayout layout) {
  using Part = ImagePart<T, N>;
  constexpr int kHeld = Part::kHeld;
  LetNextKernelStart();
  const Part part(layout);
  float mean[kHeld][N], scale[kHeld][N], beta[kHeld][N];
  float sum[kHeld][N] = {}, sum_rest[kHeld][N] = {};  // of dz and dz (x - mean)
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    part.ReadOfSets(a.mean, k, mean[k]);
    if constexpr (kMask == Mask::kOfX) {
      float variance[N];
      part.ReadOfSets(a.variance, k, variance);
      part.ReadOfChannels(a.gamma, k, scale[k]);
      part.ReadOfChannels(a.beta, k, beta[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        scale[k][i] = __fmul_rn(RstdOf(variance[i], a.epsilon), scale[k][i]);
      }
    }
  }
  part.template ForEachStep<kRows>([&](int first) {
    Step<T, N, kMask> step(part, a, first);
    if constexpr (kAdds) AddRows<T, N>(part, a.dy_addend, first, step.dy);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const auto terms = step.At(j, k, mean[k], scale[k], beta[k]);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          sum[k][i] = __fadd_rn(sum[k][i], terms.dz[i]);
          sum_rest[k][i] = __fmaf_rn(terms.dz[i], terms.rest[i], sum_rest[k][i]);
        }
        if constexpr (kMask != Mask::kNone) {
          if (a.dz != nullptr) part.Write(a.dz, Part::RowOf(first, j), k, terms.dz);
        }
      }
    }
  });
  const int width = static_cast<int>(blockDim.x) * kHeld * N;
  float* const sums = SharedMemory<float>();  // (blockDim.y, width)
  float* const sums_xhat = sums + static_cast<int>(blockDim.y) * width;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int at = static_cast<int>(threadIdx.y) * width + Part::Place(k);
    float variance[N];
    part.ReadOfSets(a.variance, k, variance);
    if (!part.Has(k)) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums[at + i] = sum[k][i];
      sums_xhat[at + i] = __fmul_rn(sum_rest[k][i], RstdOf(variance[i], a.epsilon));
    }
  }
  __syncthreads();
  float* const to = a.workspace + part.partial() * 2 * layout.columns + part.first_column();
  for (int c = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); c < part.columns();
       c += static_cast<int>(blockDim.x * blockDim.y)) {
    float total = 0.0F, total_xhat = 0.0F;
#pragma unroll 4
    for (unsigned y = 0; y < blockDim.y; ++y) {
      total = __fadd_rn(total, sums[static_cast<int>(y) * width + c]);
      total_xhat = __fadd_rn(total_xhat, sums_xhat[static_cast<int>(y) * width + c]);
    }
    to[c] = total;
    to[layout.columns + c] = total_xhat;
  }
}

// Computes, from the sums of all blocks of rows, dbeta and dgamma, unless dgamma is null, and the
// means of a batch norm's sets, unless they are null. Collects statistics, if requested.
template <typename T>
__global__ void __launch_bounds__(512)
    ColumnTotalsKernel(const Arguments a, const ImageNormLayout layout, const Means means) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const bool exists = c < layout.columns;
  const float* const sums = a.workspace + c;
  float total = 0.0F, total_xhat = 0.0F;
#pragma unroll 8
  for (int64_t block = threadIdx.y; exists && block < layout.partials(); block += blockDim.y) {
    total = __fadd_rn(total, sums[2 * block * layout.columns]);
    total_xhat = __fadd_rn(total_xhat, sums[(2 * block + 1) * layout.columns]);
  }
  SumPair* const scratch = SharedMemory<SumPair>();
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  scratch[at] = {total, total_xhat};
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) scratch[at] = scratch[at] + scratch[at + half * blockDim.x];
  }
  if (threadIdx.y != 0 || !exists) return;
  const SumPair all = scratch[at];
  if (a.dgamma != nullptr) {
    a.dbeta[c] = a.accumulate ? __fadd_rn(a.dbeta[c], all.first) : all.first;
    a.dgamma[c] = a.accumulate ? __fadd_rn(a.dgamma[c], all.second) : all.second;
  }
  if (a.to_mean != nullptr) {
    CollectStatistics(a.mean[c], a.variance[c], a.unbiased, a.accumulate, a.to_mean[c],
                      a.to_variance[c]);
  }
  if (means.g != nullptr) {
    const float gamma = ToFloat(static_cast<const T*>(a.gamma)[c]);
    const auto rows = static_cast<float>(layout.segment_rows);
    means.g[c] = __fmul_rn(gamma, all.first) / rows;
    means.g_xhat[c] = __fmul_rn(gamma, all.second) / rows;
  }
}

// Computes the means of a group norm's sets: a team has the columns of a group, in all blocks of a
// segment.
template <typename T>
__global__ void __launch_bounds__(kMaxTeamThreads)
    GroupMeansKernel(const Arguments a, const ImageNormLayout layout, const Means means) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t set = TeamRow();
  if (set >= layout.sets()) return;
  const int64_t segment = set / layout.groups;
  const int first_column = static_cast<int>(set - segment * layout.groups) * layout.planes;
  const int64_t entries = int64_t{layout.blocks} * layout.planes;
  SumPair sum{0.0F, 0.0F};
#pragma unroll 4
  for (int64_t entry = threadIdx.x; entry < entries; entry += blockDim.x) {
    const int64_t block = entry / layout.planes;
    const int column = first_column + static_cast<int>(entry - block * layout.planes);
    const float* const sums =
        a.workspace + 2 * (segment * layout.blocks + block) * layout.columns + column;
    const float gamma = ToFloat(static_cast<const T*>(a.gamma)[column]);
    sum.first = __fmaf_rn(gamma, sums[0], sum.first);
    sum.second = __fmaf_rn(gamma, sums[layout.columns], sum.second);
  }
  sum = TeamSum(sum, SharedMemory<SumPair>());
  if (threadIdx.x != 0) return;
  const float elements =
      static_cast<float>(layout.segment_rows) * static_cast<float>(layout.planes);
  means.g[set] = sum.first / elements;
  means.g_xhat[set] = sum.second / elements;
}

// Computes dx = dz (gamma rstd) - mean(g) rstd - (x - mean) (mean(g xhat) rstd^2).
template <typename T, int N, Mask kMask>
__global__ void __launch_bounds__(kImageThreads, kImageBlocksAtOnce)
    InputKernel(const Arguments a, const ImageNormLayout layout, const Means means) {
  using Part = ImagePart<T, N>;
  constexpr int kHeld = Part::kHeld;
  WaitForEarlierKernels();
  const Part part(layout);
  float mean[kHeld][N], scale[kHeld][N], beta[kHeld][N], of_rest[kHeld][N], shift[kHeld][N];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float variance[N];
    part.ReadOfSets(a.mean, k, mean[k]);
    part.ReadOfSets(a.variance, k, variance);
    part.ReadOfChannels(a.gamma, k, scale[k]);
    if constexpr (kMask == Mask::kOfX) part.ReadOfChannels(a.beta, k, beta[k]);
    part.ReadOfSets(means.g, k, shift[k]);
    part.ReadOfSets(means.g_xhat, k, of_rest[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float rstd = RstdOf(variance[i], a.epsilon);
      scale[k][i] = __fmul_rn(rstd, scale[k][i]);
      shift[k][i] = -__fmul_rn(shift[k][i], rstd);
      of_rest[k][i] = -__fmul_rn(__fmul_rn(of_rest[k][i], rstd), rstd);
    }
  }
  part.template ForEachStepBackwards<kRows>([&](int first) {
    const Step<T, N, kMask> step(part, a, first);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const auto terms = step.At(j, k, mean[k], scale[k], beta[k]);
        float dx[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
          dx[i] = __fmaf_rn(terms.rest[i], of_rest[k][i],
                            __fmaf_rn(terms.dz[i], scale[k][i], shift[k][i]));
        }
        part.Write(a.dx, Part::RowOf(first, j), k, dx);
      }
    }
  });
}

}  // namespace

int64_t ImageNormWorkspaceBytes(ElementType type, const ImageNormExtents& extents) {
  const ImageNormLayout layout = LayOutImages(type, extents);
  return (SumsElements(layout) + 2 * MeansElements(layout)) * static_cast<int64_t>(sizeof(float));
}

cudaError_t LaunchImageNormBackward(cudaStream_t stream, ElementType type, const Arguments& a) {
  const ImageNormLayout layout = LayOutImages(type, a.extents);
  const bool of_groups = layout.groups != 0;
  const Means means = a.dx != nullptr ? MeansIn(a, layout) : Means{nullptr, nullptr};
  const auto vectors = [&](int width) {
    return a.extents.channels % width == 0 &&
           AlignedForVectors(a.dy, a.dy_addend, a.x, a.gamma, a.beta, a.mean, a.variance, a.y, a.dz, a.dx,
                             means.g, means.g_xhat);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const bool adds = a.dy_addend != nullptr;
    const auto of_x = adds ? SumsKernel<T, N, Mask::kOfX, true> : SumsKernel<T, N, Mask::kOfX>;
    const auto of_y = adds ? SumsKernel<T, N, Mask::kOfY, true> : SumsKernel<T, N, Mask::kOfY>;
    const auto sums = !a.has_relu ? SumsKernel<T, N, Mask::kNone> : a.y == nullptr ? of_x : of_y;
    cudaError_t error =
        Launch(sums, layout.grid(), layout.threads, layout.shared_bytes(type), stream, a, layout);
    if (error != cudaSuccess) return error;
    if (a.dgamma != nullptr || !of_groups) {
      const dim3 threads = MergingThreads(layout.partials());
      error = LaunchEarly(a.starts_early, ColumnTotalsKernel<T>, MergingGrid(layout.columns),
                          threads, MergingBytes(threads), stream, a, layout,
                          of_groups ? Means{nullptr, nullptr} : means);
      if (error != cudaSuccess) return error;
    }
    if (a.dx == nullptr) return cudaSuccess;
    if (of_groups) {
      const TeamLayout teams =
          LayOutTeams(layout.sets(), int64_t{layout.blocks} * layout.planes, kMergedOfThread);
      error = LaunchEarly(a.starts_early, GroupMeansKernel<T>, teams.grid, teams.block,
                          kMaxWarps * sizeof(SumPair), stream, a, layout, means);
      if (error != cudaSuccess) return error;
    }
    Arguments rest = a;
    if (a.has_relu && a.dz != nullptr) {
      rest.dy = a.dz;
      rest.has_relu = false;
    }
    const auto input = !rest.has_relu   ? InputKernel<T, N, Mask::kNone>
                       : a.y == nullptr ? InputKernel<T, N, Mask::kOfX>
                                        : InputKernel<T, N, Mask::kOfY>;
    return LaunchEarly(a.starts_early, input, layout.grid(), layout.threads, 0, stream, rest, layout,
                       means);
  });
}

}  // namespace stagecoach::kernels
