#ifndef STAGECOACH_KERNELS_CUDA_OPS_LOSS_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LOSS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"
#include "kernels/ops/loss_terms.h"

// The kernels of LossOp (kernels/ops/loss.h): formulas and shapes are there.
namespace stagecoach::kernels {

// What one row adds to the result. The workspace has one of each row.
struct LossOfRow {
  double loss;
  double correct;  // 0 or 1
};

struct LossArguments {
  int64_t rows = 1;       // R
  int64_t classes = 1;    // C
  int64_t positions = 1;  // P
  const LossTerms* terms = nullptr;
  const void* output = nullptr;
  const int32_t* labels = nullptr;
  const float* values = nullptr;  // in place of labels
  void* gradient = nullptr;       // may be null
  LossOfRow* workspace = nullptr;
  double* result = nullptr;
};
using LaunchLossFunction = cudaError_t(cudaStream_t stream, ElementType type,
                                       const LossArguments& arguments);
LaunchLossFunction LaunchSoftmaxCrossEntropy;
LaunchLossFunction LaunchMeanSquaredError;
LaunchLossFunction LaunchMeanSquaredErrorOfValues;

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LOSS_KERNELS_H_
