#ifndef STAGECOACH_KERNELS_CUDA_OPS_TOKENS_LOSS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_TOKENS_LOSS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"
#include "kernels/loss_terms.h"

// The kernels of LossOp and HeadOp (kernels/ops/loss.h and head.h have the formulas and shapes).
namespace stagecoach::kernels {

// The contribution of one row to the result. The workspace has one for each row.
struct LossOfRow {
  double loss;
  double correct;  // 0 or 1
};

// The numbers from which the gradient of a row of logits z under softmax cross-entropy is computed:
//   dz_c = e^(z_c - maximum) factor - scale [c = label]
struct RowSoftmax {
  float maximum;
  float factor;   // scale / (sum of e^(z_c - maximum)); NaN if the label is no class
  float scale;    // of the row's loss; NaN if the label's logit is NaN or infinite
  int32_t label;  // -1: the row does not count, and its gradient is 0
};

struct LossArguments {
  int64_t rows = 1;       // R
  int64_t classes = 1;    // C
  int64_t positions = 1;  // P
  const LossTerms* terms = nullptr;
  const void* output = nullptr;
  const int32_t* labels = nullptr;
  const float* values = nullptr;  // instead of labels
  void* gradient = nullptr;       // may be null
  LossOfRow* workspace = nullptr;
  double* result = nullptr;
  // Of a cross-entropy that is not plain (kernels/ops/loss.h).
  float label_smoothing = 0.0F;
  const float* class_weights = nullptr;  // null: all are 1
  float smoothed_total = 0.0F;           // the sum of e/C w_c
};
using LaunchLossFunction = cudaError_t(cudaStream_t stream, ElementType type,
                                       const LossArguments& arguments);
LaunchLossFunction LaunchSoftmaxCrossEntropy;
LaunchLossFunction LaunchWeightedCrossEntropy;
LaunchLossFunction LaunchMeanSquaredError;
LaunchLossFunction LaunchMeanSquaredErrorOfValues;

// A tile of the rows of a softmax cross-entropy: those from `first_row` of all rows on. In `loss`,
// rows, output and gradient are the tile's, and labels and workspace those of all rows. The kernel
// stores the contribution of each row to the result; LaunchLossSum adds them up once all tiles are
// done. The bits do not depend on the tiles.
struct CrossEntropyTile {
  LossArguments loss;
  int64_t first_row = 0;
  // Elements from one row of output and gradient to the next; at least `classes`. The output in
  // between is ignored, and the gradient gets zeros there up to a multiple of 16 bytes.
  int64_t leading = 1;
  RowSoftmax* softmax = nullptr;  // of all rows; may be null
  // Of the output, which is capped already (head_cap_kernels.h): the gradient is that of what it
  // was before. 0: it is not capped.
  float cap = 0.0F;
  // The first of the tile's classes, if they are a block of all: labels are of all classes.
  // LaunchCrossEntropyRows ignores it.
  int32_t first_class = 0;
};
cudaError_t LaunchCrossEntropyRows(cudaStream_t stream, ElementType type,
                                   const CrossEntropyTile& tile);
// Computes the gradient alone, from what LaunchCrossEntropyRows left in `softmax`, or
// LaunchJoinBlocks (block_loss_kernels.h): the same output yields the same bits.
cudaError_t LaunchCrossEntropyGradient(cudaStream_t stream, ElementType type,
                                       const CrossEntropyTile& tile, const RowSoftmax* softmax);
cudaError_t LaunchLossSum(cudaStream_t stream, const LossArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_TOKENS_LOSS_KERNELS_H_
