#ifndef STAGECOACH_KERNELS_OPS_LOSS_H_
#define STAGECOACH_KERNELS_OPS_LOSS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/loss_terms.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class LossOp;

struct LossShape {
  using Op = LossOp;

  int64_t rows = 1;     // R
  int64_t classes = 1;  // C: outputs of a row
  // P: rows of a sample, whose loss is their mean. R is a multiple of P.
  int64_t positions = 1;
};
struct SoftmaxCrossEntropyShape : LossShape {
  bool is_plain() const { return label_smoothing == 0.0F && class_weights.empty(); }

  float label_smoothing = 0.0F;      // e, in [0, 1)
  std::vector<float> class_weights;  // w: C of them, finite and at least 0; empty: all are 1
};
struct MeanSquaredErrorShape : LossShape {};
struct MeanSquaredErrorOfValuesShape : LossShape {};

// A loss over class labels or, in the last case, numbers. For each row:
//   softmax cross-entropy   -log softmax(output)[label]
//                           gradient softmax(output) - onehot(label)
//     with e and w          sum over c of q_c (-log softmax(output)[c]), where
//                           q_c = (1 - e) w[label] onehot(label)_c + e/C w_c
//                           gradient (sum of q) softmax(output) - q
//   mean squared error      mean over classes of (output - onehot(label))^2
//                           gradient 2/C (output - onehot(label))
//   ... of values           mean of (output - target)^2
//                           gradient 2/C (output - target)
//
//   output, gradient (R, C)   targets: labels (R) int32, or values (R, C) float32
// Labels are in [0, C), or kNoLabel: any other makes the loss and the gradient of its row NaN, and
// nothing outside the tensors is read or written.
//   result (2) float64: sum of the losses of rows, divided by P; number of correct rows
// output and gradient are of the device's activation type. If the loss of a row is NaN or infinite,
// so is its gradient. Rows of samples that are not valid (LossTerms) are padding: they do not count
// and their gradient is 0, as that of a row with kNoLabel is. A row is correct if its largest
// output, or the first of several, is at its label; with values as targets none is. The losses of
// rows are summed in double, in an order that depends on R, C and the number of valid samples
// alone. With P = 1 the division changes no bit.
class LossOp : public Operation {
 public:
  // Returns the size of the scratch for Compute.
  virtual int64_t workspace_bytes() const = 0;

  // `gradient` gets the derivative of result[0] times the scale, and may be `output` itself; if it
  // is empty, it is not computed. `terms` are in the device's memory.
  virtual absl::Status Compute(Stream& stream, const Tensor& output, const Tensor& targets,
                               const LossTerms* terms, const Tensor& gradient, const Tensor& result,
                               std::byte* workspace) = 0;
};

// Returns InvalidArgument unless smoothing and weights are as SoftmaxCrossEntropyShape says.
absl::Status CheckClassWeights(const SoftmaxCrossEntropyShape& shape);

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCpu(const SoftmaxCrossEntropyShape& shape,
                                                    Device& device);
absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCuda(const SoftmaxCrossEntropyShape& shape,
                                                     Device& device);
absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCpu(const MeanSquaredErrorShape& shape,
                                                    Device& device);
absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCuda(const MeanSquaredErrorShape& shape,
                                                     Device& device);
absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCpu(const MeanSquaredErrorOfValuesShape& shape,
                                                    Device& device);
absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCuda(const MeanSquaredErrorOfValuesShape& shape,
                                                     Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_LOSS_H_
