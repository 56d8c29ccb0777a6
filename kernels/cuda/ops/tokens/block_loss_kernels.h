#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_BLOCK_LOSS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_BLOCK_LOSS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"
#include "kernels/cuda/ops/tokens/loss_kernels.h"

// The softmax cross-entropy of a head whose classes are in blocks (kernels/ops/head.h).
namespace stagecoach::kernels {

// What a block contributes: each is an array with a number for every row.
struct BlockContribution {
  float* maximum;
  float* sum;
  float* sum_rest;
  float* at_label;
  float* largest;
};

// Computes what the tile's classes contribute, for all of its rows. Labels are of all classes.
cudaError_t LaunchBlockContribution(cudaStream_t stream, ElementType type,
                                    const CrossEntropyTile& tile,
                                    const BlockContribution& contribution);

struct JoinedBlocks {
  LossArguments loss;            // of all classes, without output and gradient
  BlockContribution first = {};  // that of the first block
  int64_t stride = 0;            // numbers from one block's to those of the next
  int64_t count = 1;
  RowSoftmax* softmax = nullptr;
};
// Joins what all blocks contribute, and stores the contribution of each row to the result;
// LaunchLossSum adds them up. One block of all classes yields the bits of LaunchCrossEntropyRows.
cudaError_t LaunchJoinBlocks(cudaStream_t stream, const JoinedBlocks& blocks);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_BLOCK_LOSS_KERNELS_H_
