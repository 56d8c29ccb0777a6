#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_INPUT_NORM_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_INPUT_NORM_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_norm.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/linear/few_rows_kernels.h"

// The norm of the few rows that a product reads, computed by each of its blocks: rows are nothing
// beside the weights, and the blocks would otherwise wait for another kernel. The bits are those of
// the norm's own kernel, whose team of threads is imitated: a warp does the work of one of a team's
// warps for one of the rows. Rows, gamma and beta are in shared memory, because registers are full
// of weights that are on their way.
namespace stagecoach::kernels {

class BlockInputNorm {
 public:
  static constexpr int kWidth = kVectorWidth<__nv_bfloat16>;

  static int64_t SharedBytes(int64_t rows, int64_t inputs) {
    return 2 * kMaxSums * static_cast<int64_t>(sizeof(float)) +
           (rows + 2) * inputs * static_cast<int64_t>(sizeof(__nv_bfloat16));
  }

  // `memory` is SharedBytes of shared memory, at a multiple of 16.
  __device__ BlockInputNorm(const InputNormArguments& norm, const void* x, int rows, int inputs,
                            float* memory)
      : norm_(norm),
        x_(x),
        rows_(rows),
        inputs_(inputs),
        sums_(memory),
        gamma_(reinterpret_cast<__nv_bfloat16*>(memory + 2 * kMaxSums)) {}

  // Starts to copy gamma and beta, or x. Copies arrive in Prepare.
  __device__ void AskForWeights() const {
    Copy(norm_.gamma, inputs_, gamma_);
    if (norm_.centers) Copy(norm_.beta, inputs_, gamma_ + inputs_);
  }
  __device__ void AskForRows() const { Copy(x_, rows_ * inputs_, gamma_ + 2 * inputs_); }

  // Computes the statistics. Called by all threads of the block; the calling one is going to need
  // those of row `row`, if there is such a row.
  __device__ void Prepare(int row) {
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();
    if (norm_.centers) {
      AddUp<false>(sums_);
      __syncthreads();
    }
    AddUp<true>(sums_ + kMaxSums);
    __syncthreads();
    if (row >= rows_) return;
    mean_ = MeanOf(row);
    rstd_ = NormRstd(TeamTotal(sums_ + kMaxSums, row), static_cast<float>(inputs_), norm_.epsilon);
  }

  // Returns the 8 normalized values from a column on, of the row that was passed to Prepare.
  __device__ uint4 Values(int row, int column) const {
    float values[kWidth], gamma[kWidth], beta[kWidth] = {};
    Load(RowAt(row) + column, values);
    Load(gamma_ + column, gamma);
    if (norm_.centers) Load(gamma_ + inputs_ + column, beta);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = Normalized(values[i], mean_, rstd_, gamma[i], beta[i]);
    }
    return Pack<__nv_bfloat16, kWidth>(values);
  }

 private:
  static constexpr int kMaxSums = static_cast<int>(kFewRows) * kMaxTeamThreads / kWarp;

  static __device__ void Copy(const void* from, int elements, __nv_bfloat16* to) {
    const int step = static_cast<int>(blockDim.x) * kWidth;
    for (int i = static_cast<int>(threadIdx.x) * kWidth; i < elements; i += step) {
      CopyAsync(to + i, static_cast<const __nv_bfloat16*>(from) + i, true);
    }
  }

  __device__ const __nv_bfloat16* RowAt(int row) const { return gamma_ + (2 + row) * inputs_; }
  __device__ int TeamWarps() const { return NormWarps(inputs_); }
  __device__ float TeamTotal(const float* sums, int row) const {
    const float* const own = sums + row * TeamWarps();
    float total = own[0];
    for (int warp = 1; warp < TeamWarps(); ++warp) total += own[warp];
    return total;
  }
  __device__ float MeanOf(int row) const {
    return norm_.centers ? TeamTotal(sums_, row) / static_cast<float>(inputs_) : 0.0F;
  }

  // Adds up the values of each warp of each row's team, or the squares of their differences from
  // the mean.
  template <bool kSquares>
  __device__ void AddUp(float* sums) const {
    const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / kWarp;
    const int team_warps = TeamWarps();
    for (int work = thread / kWarp; work < rows_ * team_warps; work += warps) {
      const int row = work / team_warps;
      const int first = (work % team_warps * kWarp + thread % kWarp) * kWidth;
      const float mean = kSquares ? MeanOf(row) : 0.0F;
      float sum = 0.0F;
      for (int column = first; column < inputs_; column += team_warps * kWarp * kWidth) {
        float values[kWidth];
        Load(RowAt(row) + column, values);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          sum = kSquares ? AddSquare(values[i], mean, sum) : sum + values[i];
        }
      }
      sum = WarpReduce(sum, [](float a, float b) { return a + b; });
      if (thread % kWarp == 0) sums[work] = sum;
    }
  }

  const InputNormArguments& norm_;
  const void* const x_;
  const int rows_, inputs_;
  float* const sums_;           // (rows, warps of a team), then those of squares
  __nv_bfloat16* const gamma_;  // then beta, then the rows
  float mean_ = 0.0F, rstd_ = 0.0F;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_INPUT_NORM_CUH_
