#ifndef STAGECOACH_KERNELS_OPS_OPS_H_
#define STAGECOACH_KERNELS_OPS_OPS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/optimizer.h"

namespace stagecoach::kernels {

// The operations of one device. An operation of fixed shape is created once, checked then, and
// called many times; it may be called only from jobs of the device's stream, and must not outlive
// the device. All tensors are in the device's memory. A call returns the first error of starting
// the work; with operands that fit the shape a CPU device has none.
//
// docs/how-to-add.md says how to add one.
class Ops {
 public:
  virtual ~Ops() = default;

  // InvalidArgument: an extent below 1, or one too large for the backend.
  virtual absl::StatusOr<std::unique_ptr<LinearOp>> CreateLinear(const LinearShape& shape) = 0;
  virtual absl::StatusOr<std::unique_ptr<LayerNormOp>> CreateLayerNorm(
      const LayerNormShape& shape) = 0;
  virtual absl::StatusOr<std::unique_ptr<LossOp>> CreateSoftmaxCrossEntropy(
      const LossShape& shape) = 0;
  virtual absl::StatusOr<std::unique_ptr<LossOp>> CreateMeanSquaredError(
      const LossShape& shape) = 0;
  virtual ElementwiseOps& elementwise() = 0;
  virtual OptimizerOps& optimizer() = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_OPS_H_
