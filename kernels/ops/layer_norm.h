#ifndef STAGECOACH_KERNELS_OPS_LAYER_NORM_H_
#define STAGECOACH_KERNELS_OPS_LAYER_NORM_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class LayerNormOp;

struct LayerNormShape {
  using Op = LayerNormOp;

  int64_t rows = 1;      // R
  int64_t features = 1;  // C
  float epsilon = 1e-5F;
  bool centers = true;  // otherwise it is RMSNorm
};

// y = (x - mean) rstd gamma + beta, with mean and rstd = 1 / sqrt(variance + epsilon) of each row
// (Ba et al. 2016).
//   x, y, dx, dy (R, C)   gamma, beta, dgamma, dbeta (C)   statistics (R, 2): mean and rstd of each
//   row
// x, y, dx, dy, gamma and beta are of the device's activation type, the others float32.
//
// RMSNorm (Zhang and Sennrich 2019), y = x rstd gamma with rstd = 1 / sqrt(mean(x^2) + epsilon), is
// the same with 0 for mean, mean(g) and beta. Its statistics (R) are rstd alone; `beta` and `dbeta`
// are ignored.
class LayerNormOp : public Operation {
 public:
  // Scratch for any of the calls below. Its contents need not be kept between calls.
  virtual int64_t workspace_bytes() const = 0;

  // `addend` (R, C), what goes around a residual connection, may be empty. Otherwise x += addend
  // comes first, in place, and what is normalized is x as it is then stored, rounded to its type:
  // all results are the same bits as those of ElementwiseOps::Add followed by Forward without one.
  // Neither `addend` nor `y` may then overlap `x`; `y` may be `addend`.
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& gamma,
                               const Tensor& beta, const Tensor& addend, const Tensor& statistics,
                               const Tensor& y) = 0;

  // dx = addend + rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma, xhat = (x - mean) rstd.
  // `dx` may be `dy`. `addend` (R, C), the gradient that goes around a residual connection, may be
  // empty.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x,
                                     const Tensor& gamma, const Tensor& statistics,
                                     const Tensor& addend, const Tensor& dx) = 0;

  // dgamma = column sums of dy xhat, dbeta = column sums of dy; added to what they hold if
  // `accumulate`.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x,
                                      const Tensor& statistics, const Tensor& dgamma,
                                      const Tensor& dbeta, bool accumulate,
                                      std::byte* workspace) = 0;

  // Whether Backward takes less time than the two above one after the other.
  virtual bool shares_backward() const { return false; }
  // Both of these, for less time where a device can read dy and x once for both; with the same
  // bits. `dx` may not be `dy` here.
  virtual absl::Status Backward(Stream& stream, const Tensor& dy, const Tensor& x,
                                const Tensor& gamma, const Tensor& statistics, const Tensor& addend,
                                const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta,
                                bool accumulate, std::byte* workspace) {
    const absl::Status status = BackwardInput(stream, dy, x, gamma, statistics, addend, dx);
    if (!status.ok()) return status;
    return BackwardWeight(stream, dy, x, statistics, dgamma, dbeta, accumulate, workspace);
  }
};

absl::StatusOr<std::unique_ptr<LayerNormOp>> CreateOnCpu(const LayerNormShape& shape,
                                                         Device& device);
absl::StatusOr<std::unique_ptr<LayerNormOp>> CreateOnCuda(const LayerNormShape& shape,
                                                          Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_LAYER_NORM_H_
