#ifndef STAGECOACH_KERNELS_OPS_ACTIVATION_H_
#define STAGECOACH_KERNELS_OPS_ACTIVATION_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/activation.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class ActivationOp;

struct ActivationShape {
  using Op = ActivationOp;

  int64_t rows = 1;      // R
  int64_t features = 1;  // C
  Activation activation = Activation::kRelu;
};

// Computes y = activation(z) with z = x + addend. All tensors are (R, C), of the device's
// activation type.
class ActivationOp : public Operation {
 public:
  // `addend`, the other side of a residual connection, may be empty. `y` may be `x` or `addend`.
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& addend,
                               const Tensor& y) = 0;

  // Computes dx = dy * activation'(z). `known` is z if KeepsZ(activation), otherwise y. `dx` may be
  // `dy`.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& known,
                                     const Tensor& dx) = 0;
};

absl::StatusOr<std::unique_ptr<ActivationOp>> CreateOnCpu(const ActivationShape& shape,
                                                          Device& device);
absl::StatusOr<std::unique_ptr<ActivationOp>> CreateOnCuda(const ActivationShape& shape,
                                                           Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_ACTIVATION_H_
