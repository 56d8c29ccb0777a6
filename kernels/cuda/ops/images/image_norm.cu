#include <cuda_runtime.h>

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/images/image_norm_kernels.h"
#include "kernels/cuda/ops/images/image_norm_rows.cuh"

// Batch norm and group norm forward. The statistics are merged from those of parts, each a mean and
// a sum of squared differences from it (Chan, Golub & LeVeque 1983): x is read once, and no digits
// are lost if it is far from 0. A thread first merges the rows that it reads at a time into what it
// had; then the rows of a block are merged; then all. The backward pass is in
// image_norm_backward.cu.
namespace stagecoach::kernels {
namespace {

using Arguments = ImageNormArguments;

// The running statistics of the N columns of a vector.
template <int N>
struct Running {
  float mean[N] = {}, squares[N] = {};

  // Adds kBatch values of each column, of which the first `present` count; the others are 0.
  // `fraction` is their share of all values, themselves included.
  template <int kBatch>
  __device__ void Add(const float (&values)[kBatch][N], int present, float count, float fraction) {
    const float inverse = 1.0F / static_cast<float>(present);
    const float weight = __fmul_rn(count, fraction);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float sum = values[0][i];
#pragma unroll
      for (int j = 1; j < kBatch; ++j) sum = __fadd_rn(sum, values[j][i]);
      const float own_mean = __fmul_rn(sum, inverse);
      float own_squares = 0.0F;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float rest = j < present ? __fadd_rn(values[j][i], -own_mean) : 0.0F;
        own_squares = __fmaf_rn(rest, rest, own_squares);
      }
      const float difference = __fadd_rn(own_mean, -mean[i]);
      mean[i] = __fmaf_rn(difference, fraction, mean[i]);
      squares[i] =
          __fmaf_rn(__fmul_rn(difference, weight), difference, __fadd_rn(squares[i], own_squares));
    }
  }
};

// Writes mean and sum of squares of the block's rows into the workspace (segments, blocks, 2, C).
// While the rows of a step are merged, those of the next are being loaded.
template <typename T, int N>
__global__ void __launch_bounds__(kImageThreads, kImageBlocksAtOnce)
    StatisticsKernel(const Arguments a, const ImageNormLayout layout) {
  using Part = ImagePart<T, N>;
  constexpr int kHeld = Part::kHeld;
  LetNextKernelStart();
  const Part part(layout);
  Running<N> running[kHeld];
  float count = 0.0F;
  constexpr bool kReadsAhead = N > 1;  // there are registers for it
  typename Part::Row next[kImageBatch];
  if constexpr (kReadsAhead) part.Read(a.x, static_cast<int>(threadIdx.y), next);
  part.template ForEachStep<kImageBatch>([&](int first) {
    typename Part::Row rows[kImageBatch];
    if constexpr (kReadsAhead) {
#pragma unroll
      for (int j = 0; j < kImageBatch; ++j) rows[j] = next[j];
      part.Read(a.x, Part::RowOf(first, kImageBatch), next);
    } else {
      part.Read(a.x, first, rows);
    }
    int present = 1;
#pragma unroll
    for (int j = 1; j < kImageBatch; ++j) {
      if (Part::RowOf(first, j) < part.rows()) present = j + 1;
    }
    const float all = count + static_cast<float>(present);
    const float fraction = static_cast<float>(present) / all;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      float values[kImageBatch][N];
#pragma unroll
      for (int j = 0; j < kImageBatch; ++j) Unpack<T, N>(rows[j].vectors[k], values[j]);
      running[k].Add(values, present, count, fraction);
    }
    count = all;
  });
  const int width = static_cast<int>(blockDim.x) * kHeld * N;
  float* const means = SharedMemory<float>();  // (blockDim.y, width)
  const int threads = static_cast<int>(blockDim.y);
  float* const squares = means + threads * width;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int at = static_cast<int>(threadIdx.y) * width + Part::Place(k);
    constexpr int kQuad = N == 1 ? 1 : kVectorWidth<float>;
#pragma unroll
    for (int i = 0; i < N; i += kQuad) {
      float mean[kQuad], rest[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        mean[j] = running[k].mean[i + j];
        rest[j] = running[k].squares[i + j];
      }
      StoreShared(means + at + i, mean);
      StoreShared(squares + at + i, rest);
    }
  }
  __syncthreads();
  const auto rows = static_cast<float>(part.rows());
  float* const to = a.workspace + part.partial() * 2 * layout.columns + part.first_column();
  for (int c = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); c < part.columns();
       c += static_cast<int>(blockDim.x * blockDim.y)) {
    float sum = 0.0F;
#pragma unroll 4
    for (int y = 0; y < threads; ++y) {
      sum = __fmaf_rn(static_cast<float>(part.RowsOf(y)), means[y * width + c], sum);
    }
    const float mean = sum / rows;
    float rest = 0.0F;
#pragma unroll 4
    for (int y = 0; y < threads; ++y) {
      const int at = y * width + c;
      const auto own = static_cast<float>(part.RowsOf(y));
      const float difference = __fadd_rn(means[at], -mean);
      rest = __fmaf_rn(__fmul_rn(own, difference), difference, __fadd_rn(rest, squares[at]));
    }
    to[c] = mean;
    to[layout.columns + c] = rest;
  }
}

// Returns the sum over threads with the same threadIdx.x, to all of them. `scratch` has one value
// for each thread.
__device__ float MergeDown(float value, float* scratch) {
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();  // an earlier sum has been read
  scratch[at] = value;
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
      scratch[at] = __fadd_rn(scratch[at], scratch[at + half * blockDim.x]);
    }
  }
  __syncthreads();
  return scratch[threadIdx.x];
}

// The mean and sum of squares of a block in the workspace, by its number among the segments'
// blocks.
struct PartialStatistics {
  const float* workspace;
  int64_t columns;

  __device__ float Mean(int64_t partial, int column) const {
    return workspace[2 * partial * columns + column];
  }
  __device__ float Squares(int64_t partial, int column) const {
    return workspace[(2 * partial + 1) * columns + column];
  }
};

// Computes mean and variance of a batch norm's sets: one column each.
__global__ void __launch_bounds__(512)
    MergeColumnsKernel(const Arguments a, const ImageNormLayout layout) {
  // There is one segment, so a thread has few blocks.
  constexpr int kBlocks = kMostImageBlocks / kMostMergingTeams;
  LetNextKernelStart();
  WaitForEarlierKernels();
  const PartialStatistics partial{a.workspace, layout.columns};
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const bool exists = c < layout.columns;
  const auto rows = static_cast<float>(layout.segment_rows);
  float own[kBlocks], means[kBlocks], squares[kBlocks];
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    const int block = static_cast<int>(threadIdx.y + static_cast<unsigned>(i) * blockDim.y);
    const bool is_block = exists && block < layout.blocks;
    own[i] = is_block ? static_cast<float>(RowsOfBlock(layout, block)) : 0.0F;
    means[i] = is_block ? partial.Mean(block, c) : 0.0F;
    squares[i] = is_block ? partial.Squares(block, c) : 0.0F;
  }
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) sum = __fmaf_rn(own[i], means[i], sum);
  const float mean = MergeDown(sum, SharedMemory<float>()) / rows;
  float rest = 0.0F;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    const float difference = __fadd_rn(means[i], -mean);
    rest = __fmaf_rn(__fmul_rn(own[i], difference), difference, __fadd_rn(rest, squares[i]));
  }
  rest = MergeDown(rest, SharedMemory<float>());
  if (threadIdx.y != 0 || !exists) return;
  a.mean[c] = mean;
  a.variance[c] = rest / rows;
}

// Computes those of a group norm: a team has the columns of a group, in all blocks of a segment.
__global__ void __launch_bounds__(kMaxTeamThreads)
    MergeGroupsKernel(const Arguments a, const ImageNormLayout layout) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t set = TeamRow();
  if (set >= layout.sets()) return;
  const PartialStatistics partial{a.workspace, layout.columns};
  const int64_t segment = set / layout.groups;
  const int first_column = static_cast<int>(set - segment * layout.groups) * layout.planes;
  const int64_t entries = int64_t{layout.blocks} * layout.planes;
  float* const scratch = SharedMemory<float>();
  // Calls visit(number of rows, block, column).
  const auto for_each = [&](auto visit) {
#pragma unroll 4
    for (int64_t entry = threadIdx.x; entry < entries; entry += blockDim.x) {
      const int block = static_cast<int>(entry / layout.planes);
      const int plane = static_cast<int>(entry - int64_t{block} * layout.planes);
      visit(static_cast<float>(RowsOfBlock(layout, block)), segment * layout.blocks + block,
            first_column + plane);
    }
  };
  const float elements =
      static_cast<float>(layout.segment_rows) * static_cast<float>(layout.planes);
  float sum = 0.0F;
  for_each([&](float own, int64_t block, int column) {
    sum = __fmaf_rn(own, partial.Mean(block, column), sum);
  });
  const float mean = TeamSum(sum, scratch) / elements;
  float rest = 0.0F;
  for_each([&](float own, int64_t block, int column) {
    const float difference = __fadd_rn(partial.Mean(block, column), -mean);
    rest = __fmaf_rn(__fmul_rn(own, difference), difference,
                     __fadd_rn(rest, partial.Squares(block, column)));
  });
  rest = TeamSum(rest, scratch);
  if (threadIdx.x != 0) return;
  a.mean[set] = mean;
  a.variance[set] = rest / elements;
}

// With kNorms, the addend is another norm's x.
template <typename T, int N, bool kAdds, bool kRelu, bool kNorms = false>
__global__ void __launch_bounds__(kImageThreads, kImageBlocksAtOnce)
    ApplyKernel(const Arguments a, const ImageNormLayout layout) {
  using Part = ImagePart<T, N>;
  constexpr int kHeld = Part::kHeld;
  constexpr int kRows = kAdds ? kImageBatch / 2 : kImageBatch;
  constexpr int kOthers = kNorms ? kHeld : 1;
  WaitForEarlierKernels();
  const Part part(layout);
  float mean[kHeld][N], scale[kHeld][N], shift[kHeld][N];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float variance[N];
    part.ReadOfSets(a.mean, k, mean[k]);
    part.ReadOfSets(a.variance, k, variance);
    part.ReadOfChannels(a.gamma, k, scale[k]);
    part.ReadOfChannels(a.beta, k, shift[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      scale[k][i] = __fmul_rn(RstdOf(variance[i], a.epsilon), scale[k][i]);
    }
  }
  float other_mean[kOthers][N], other_scale[kOthers][N], other_shift[kOthers][N];
  if constexpr (kNorms) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      float variance[N];
      part.ReadOfSets(a.of_addend.mean, k, other_mean[k]);
      part.ReadOfSets(a.of_addend.variance, k, variance);
      part.ReadOfChannels(a.of_addend.gamma, k, other_scale[k]);
      part.ReadOfChannels(a.of_addend.beta, k, other_shift[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        other_scale[k][i] = __fmul_rn(RstdOf(variance[i], a.of_addend.epsilon), other_scale[k][i]);
      }
    }
  }
  part.template ForEachStepBackwards<kRows>([&](int first) {
    typename Part::Row rows[kRows], addends[kAdds ? kRows : 1];
    part.Read(a.x, first, rows);
    if constexpr (kAdds) part.Read(a.addend, first, addends);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        float values[N], others[N];
        Unpack<T, N>(rows[j].vectors[k], values);
        if constexpr (kAdds) Unpack<T, N>(addends[j].vectors[k], others);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          values[i] = Normalized(values[i], mean[k][i], scale[k][i], shift[k][i]);
          if constexpr (kNorms) {
            others[i] = RoundedTo<T>(
                Normalized(others[i], other_mean[k][i], other_scale[k][i], other_shift[k][i]));
          }
          // Each operation rounds its result.
          if constexpr (kAdds) values[i] = __fadd_rn(RoundedTo<T>(values[i]), others[i]);
          if constexpr (kRelu)
            values[i] = ReluActivation::Of(kAdds ? values[i] : RoundedTo<T>(values[i]));
        }
        part.Write(a.y, Part::RowOf(first, j), k, values);
      }
    }
  });
}

__global__ void __launch_bounds__(kImageThreads) CollectKernel(const ImageNormCollectArguments a) {
  const int64_t set = static_cast<int64_t>(blockIdx.x) * kImageThreads + threadIdx.x;
  if (set >= a.sets) return;
  CollectStatistics(a.mean[set], a.variance[set], a.unbiased, a.accumulate, a.to_mean[set],
                    a.to_variance[set]);
}

// Returns whether a thread may read its columns at once.
bool IsInVectors(const Arguments& a, int width) {
  return a.extents.channels % width == 0 &&
         AlignedForVectors(a.x, a.gamma, a.beta, a.mean, a.variance, a.addend, a.y) &&
         AlignedForVectors(a.of_addend.gamma, a.of_addend.beta, a.of_addend.mean,
                           a.of_addend.variance);
}

}  // namespace

cudaError_t LaunchImageNormStatistics(cudaStream_t stream, ElementType type, const Arguments& a) {
  const ImageNormLayout layout = LayOutImages(type, a.extents);
  const auto vectors = [&](int width) { return IsInVectors(a, width); };
  const cudaError_t error = DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    return Launch(StatisticsKernel<decltype(element), decltype(width)::value>, layout.grid(),
                  layout.threads, layout.shared_bytes(type), stream, a, layout);
  });
  if (error != cudaSuccess) return error;
  if (layout.groups == 0) {
    const dim3 threads = MergingThreads(layout.blocks);
    return LaunchEarly(a.starts_early, MergeColumnsKernel, MergingGrid(layout.columns), threads,
                       MergingBytes(threads), stream, a, layout);
  }
  const TeamLayout teams =
      LayOutTeams(layout.sets(), int64_t{layout.blocks} * layout.planes, kMergedOfThread);
  return LaunchEarly(a.starts_early, MergeGroupsKernel, teams.grid, teams.block,
                     kMaxWarps * sizeof(float), stream, a, layout);
}

cudaError_t LaunchImageNormApply(cudaStream_t stream, ElementType type, const Arguments& a) {
  const ImageNormLayout layout = LayOutImages(type, a.extents);
  const auto vectors = [&](int width) { return IsInVectors(a, width); };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int N = decltype(width)::value;
    const auto kernel =
        a.of_addend.mean != nullptr
            ? (a.has_relu ? ApplyKernel<T, N, true, true, true>
                          : ApplyKernel<T, N, true, false, true>)
        : a.addend != nullptr
            ? (a.has_relu ? ApplyKernel<T, N, true, true> : ApplyKernel<T, N, true, false>)
            : (a.has_relu ? ApplyKernel<T, N, false, true> : ApplyKernel<T, N, false, false>);
    return LaunchEarly(a.starts_early, kernel, layout.grid(), layout.threads, 0, stream, a, layout);
  });
}

cudaError_t LaunchImageNormCollect(cudaStream_t stream, const ImageNormCollectArguments& a) {
  const auto blocks = static_cast<unsigned>((a.sets + kImageThreads - 1) / kImageThreads);
  return Launch(CollectKernel, dim3(blocks), dim3(kImageThreads), 0, stream, a);
}

}  // namespace stagecoach::kernels
