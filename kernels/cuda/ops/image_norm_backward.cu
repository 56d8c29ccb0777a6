#include <cuda_runtime.h>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/image_norm_kernels.h"
#include "kernels/cuda/ops/image_norm_rows.cuh"

// Batch norm and group norm backward. dy and x are read for the sums of dy and dy xhat, of each
// column of a block of rows. Of these are made the gradients of gamma and beta, the sums of
// columns, and the means of g and g xhat of each set, by which dx is made in a second pass. All
// gradients may be asked for at once or apart, and get the same bits: the kernels are the same.
namespace stagecoach::kernels {
namespace {

using Arguments = ImageNormBackwardArguments;

constexpr int kRows = 2;  // of each operand, that a thread has in flight

// The workspace: sums of dy and of dy xhat (segments, blocks, 2, C), and means of g and of g xhat
// (2, S).
int64_t SumsElements(const ImageNormLayout& layout) {
  return layout.partials() * 2 * layout.columns;
}

struct Means {
  float* g;
  float* g_xhat;
};
Means MeansIn(const Arguments& a, const ImageNormLayout& layout) {
  float* const g = a.workspace + SumsElements(layout);
  return {g, g + layout.sets()};
}

// Writes the sums of the block's rows.
template <typename T, int N>
__global__ void __launch_bounds__(kImageThreads, 4)
    SumsKernel(const Arguments a, const ImageNormLayout layout) {
  using Part = ImagePart<T, N>;
  constexpr int kHeld = Part::kHeld;
  const Part part(layout);
  float mean[kHeld][N], sum[kHeld][N] = {}, sum_rest[kHeld][N] = {};  // of dy and dy (x - mean)
#pragma unroll
  for (int k = 0; k < kHeld; ++k) part.ReadOfSets(a.mean, k, mean[k]);
  part.template ForEachStep<kRows>([&](int first) {
    typename Part::Row dy_rows[kRows], x_rows[kRows];
    part.Read(a.dy, first, dy_rows);
    part.Read(a.x, first, x_rows);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        float dy[N], x[N];
        Unpack<T, N>(dy_rows[j].vectors[k], dy);
        Unpack<T, N>(x_rows[j].vectors[k], x);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          sum[k][i] = __fadd_rn(sum[k][i], dy[i]);
          sum_rest[k][i] = __fmaf_rn(dy[i], __fadd_rn(x[i], -mean[k][i]), sum_rest[k][i]);
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

// dbeta and dgamma, unless dgamma is null, and the means of a batch norm's sets unless they are:
// from the sums of all blocks of rows.
template <typename T>
__global__ void __launch_bounds__(512)
    ColumnTotalsKernel(const Arguments a, const ImageNormLayout layout, const Means means) {
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
  if (means.g != nullptr) {
    const float gamma = ToFloat(static_cast<const T*>(a.gamma)[c]);
    const auto rows = static_cast<float>(layout.segment_rows);
    means.g[c] = __fmul_rn(gamma, all.first) / rows;
    means.g_xhat[c] = __fmul_rn(gamma, all.second) / rows;
  }
}

// The means of a group norm's sets: a team has the columns of a group, of all blocks of a segment.
template <typename T>
__global__ void __launch_bounds__(kMaxTeamThreads)
    GroupMeansKernel(const Arguments a, const ImageNormLayout layout, const Means means) {
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

// dx = dy (gamma rstd) - mean(g) rstd - (x - mean) (mean(g xhat) rstd^2).
template <typename T, int N>
__global__ void __launch_bounds__(kImageThreads)
    InputKernel(const Arguments a, const ImageNormLayout layout, const Means means) {
  using Part = ImagePart<T, N>;
  constexpr int kHeld = Part::kHeld;
  const Part part(layout);
  float mean[kHeld][N], of_dy[kHeld][N], of_rest[kHeld][N], shift[kHeld][N];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float variance[N];
    part.ReadOfSets(a.mean, k, mean[k]);
    part.ReadOfSets(a.variance, k, variance);
    part.ReadOfChannels(a.gamma, k, of_dy[k]);
    part.ReadOfSets(means.g, k, shift[k]);
    part.ReadOfSets(means.g_xhat, k, of_rest[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float rstd = RstdOf(variance[i], a.epsilon);
      of_dy[k][i] = __fmul_rn(of_dy[k][i], rstd);
      shift[k][i] = -__fmul_rn(shift[k][i], rstd);
      of_rest[k][i] = -__fmul_rn(__fmul_rn(of_rest[k][i], rstd), rstd);
    }
  }
  part.template ForEachStepBackwards<kRows>([&](int first) {
    typename Part::Row dy_rows[kRows], x_rows[kRows];
    part.Read(a.dy, first, dy_rows);
    part.Read(a.x, first, x_rows);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        float dy[N], x[N], dx[N];
        Unpack<T, N>(dy_rows[j].vectors[k], dy);
        Unpack<T, N>(x_rows[j].vectors[k], x);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          dx[i] = __fmaf_rn(__fadd_rn(x[i], -mean[k][i]), of_rest[k][i],
                            __fmaf_rn(dy[i], of_dy[k][i], shift[k][i]));
        }
        part.Write(a.dx, Part::RowOf(first, j), k, dx);
      }
    }
  });
}

}  // namespace

int64_t ImageNormWorkspaceBytes(ElementType type, const ImageNormExtents& extents) {
  const ImageNormLayout layout = LayOutImages(type, extents);
  return (SumsElements(layout) + 2 * layout.sets()) * static_cast<int64_t>(sizeof(float));
}

cudaError_t LaunchImageNormBackward(cudaStream_t stream, ElementType type, const Arguments& a) {
  const ImageNormLayout layout = LayOutImages(type, a.extents);
  const bool of_groups = layout.groups != 0;
  const Means means = a.dx != nullptr ? MeansIn(a, layout) : Means{nullptr, nullptr};
  const auto vectors = [&](int width) {
    return a.extents.channels % width == 0 &&
           AlignedForVectors(a.dy, a.x, a.gamma, a.mean, a.variance, a.dx, means.g, means.g_xhat);
  };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    cudaError_t error = Launch(SumsKernel<T, N>, layout.grid(), layout.threads,
                               layout.shared_bytes(type), stream, a, layout);
    if (error != cudaSuccess) return error;
    if (a.dgamma != nullptr || !of_groups) {
      const dim3 threads = MergingThreads(layout.partials());
      error =
          Launch(ColumnTotalsKernel<T>, MergingGrid(layout.columns), threads, MergingBytes(threads),
                 stream, a, layout, of_groups ? Means{nullptr, nullptr} : means);
      if (error != cudaSuccess) return error;
    }
    if (a.dx == nullptr) return cudaSuccess;
    if (of_groups) {
      const TeamLayout teams =
          LayOutTeams(layout.sets(), int64_t{layout.blocks} * layout.planes, kMergedOfThread);
      error = Launch(GroupMeansKernel<T>, teams.grid, teams.block, kMaxWarps * sizeof(SumPair),
                     stream, a, layout, means);
      if (error != cudaSuccess) return error;
    }
    return Launch(InputKernel<T, N>, layout.grid(), layout.threads, 0, stream, a, layout, means);
  });
}

}  // namespace stagecoach::kernels
