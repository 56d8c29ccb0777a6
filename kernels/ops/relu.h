#ifndef STAGECOACH_KERNELS_OPS_RELU_H_
#define STAGECOACH_KERNELS_OPS_RELU_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class ReluOp;

struct ReluShape {
  using Op = ReluOp;

  int64_t rows = 1;      // R
  int64_t features = 1;  // C
};

// y = max(0, x + addend). All tensors are (R, C), of the device's activation type.
class ReluOp : public Operation {
 public:
  // `addend`, the other side of a residual connection, may be empty. `y` may be `x` or `addend`.
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& addend,
                               const Tensor& y) = 0;

  // dx = dy where y is above 0, elsewhere 0. `dx` may be `dy`.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& y,
                                     const Tensor& dx) = 0;
};

absl::StatusOr<std::unique_ptr<ReluOp>> CreateOnCpu(const ReluShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<ReluOp>> CreateOnCuda(const ReluShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_RELU_H_
