#include "kernels/cuda/ops/tokens/block_loss_kernels.h"

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/tokens/cross_entropy.cuh"

namespace stagecoach::kernels {
namespace {

constexpr int kJoinThreads = 128;  // a thread has a row

template <typename T, int N>
__global__ void __launch_bounds__(kMaxTeamThreads)
    BlockContributionKernel(const CrossEntropyTile tile, const BlockContribution to) {
  const LossArguments& a = tile.loss;
  const int64_t r = TeamRow();
  if (r >= a.rows) return;
  const T* const output = static_cast<const T*>(a.output) + r * tile.leading;
  const RowSums sums =
      SumsOfRow(TwiceReadRow<T, N, false>(a.classes, output, nullptr), static_cast<int>(a.classes),
                SharedMemory<RowScratch>());
  if (threadIdx.x != 0) return;
  const int64_t row = tile.first_row + r;
  const int64_t label = static_cast<int64_t>(a.labels[row]) - tile.first_class;
  to.maximum[row] = sums.maximum;
  to.sum[row] = sums.sum;
  to.sum_rest[row] = 0.0F;
  to.at_label[row] = label >= 0 && label < a.classes ? ToFloat(output[label]) : 0.0F;
  to.largest[row] = static_cast<float>(static_cast<int64_t>(tile.first_class) + sums.largest);
}

__global__ void __launch_bounds__(kJoinThreads) JoinBlocksKernel(const JoinedBlocks blocks) {
  const LossArguments& a = blocks.loss;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kJoinThreads + threadIdx.x;
  if (r >= a.rows) return;
  if (!Counts(a, r)) {
    a.workspace[r] = {0.0, 0.0};
    blocks.softmax[r] = {0.0F, 0.0F, 0.0F, -1};
    return;
  }
  const BlockContribution& first = blocks.first;
  float maximum = -INFINITY, largest = 0.0F;
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t place = block * blocks.stride + r;
    if (first.maximum[place] <= maximum) continue;  // the first of equals wins
    maximum = first.maximum[place];
    largest = first.largest[place];
  }
  double sum = 0.0;
  float at_label = 0.0F;
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t place = block * blocks.stride + r;
    const double own =
        static_cast<double>(first.sum[place]) + static_cast<double>(first.sum_rest[place]);
    sum += own * exp(static_cast<double>(first.maximum[place]) - static_cast<double>(maximum));
    at_label += first.at_label[place];
  }
  const int label = a.labels[r];
  const bool is_class = IsClass(a, label);
  if (!is_class) at_label = NAN;
  a.workspace[r] = {log(sum) - (static_cast<double>(at_label) - static_cast<double>(maximum)),
                    static_cast<int64_t>(largest) == label ? 1.0 : 0.0};
  const float scale = ScaleOfRow(a);
  // A loss that is NaN or infinite shows in the gradient.
  blocks.softmax[r] = {maximum,
                       is_class ? static_cast<float>(static_cast<double>(scale) / sum) : NAN,
                       scale * (1.0F + 0.0F * at_label), is_class ? label : 0};
}

}  // namespace

cudaError_t LaunchBlockContribution(cudaStream_t stream, ElementType type,
                                    const CrossEntropyTile& tile,
                                    const BlockContribution& contribution) {
  return DispatchTile(
      type, tile, [&](auto element, auto width, const TeamLayout& layout, size_t /*row_bytes*/) {
        return Launch(BlockContributionKernel<decltype(element), decltype(width)::value>,
                      layout.grid, layout.block, sizeof(RowScratch), stream, tile, contribution);
      });
}

cudaError_t LaunchJoinBlocks(cudaStream_t stream, const JoinedBlocks& blocks) {
  const auto grid = static_cast<unsigned>((blocks.loss.rows + kJoinThreads - 1) / kJoinThreads);
  return Launch(JoinBlocksKernel, dim3(grid), dim3(kJoinThreads), 0, stream, blocks);
}

}  // namespace stagecoach::kernels
