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
  bool centers = true;  // false: RMSNorm
};

// The norm of another operation's input, where that computes it as it reads the input: as a
// LayerNormOp of the same epsilon and `centers` does, rounded to the type.
struct InputNorm {
  Tensor gamma, beta;  // (C)
  float epsilon = 1e-5F;
  bool centers = true;
};

// Computes y = (x - mean) rstd gamma + beta, with mean and rstd = 1 / sqrt(variance + epsilon) of
// each row (Ba et al. 2016).
//   x, y, dx, dy (R, C)   gamma, beta, dgamma, dbeta (C)   statistics (R, 2): mean and rstd of each
//   row
// x, y, dx, dy, gamma and beta are of the device's activation type, the others float32.
//
// RMSNorm (Zhang and Sennrich 2019), y = x rstd gamma with rstd = 1 / sqrt(mean(x^2) + epsilon), is
// the same with 0 instead of mean, mean(g) and beta. Its statistics (R) are rstd alone; `beta` and
// `dbeta` are ignored.
class LayerNormOp : public Operation {
 public:
  // Returns the size of the scratch for any of the calls below, whose contents need not be kept
  // between calls.
  virtual int64_t workspace_bytes() const = 0;

  // `addend` (R, C), the other branch of a residual connection, may be empty. Otherwise x += addend
  // comes first, in place, and the x that is normalized is the stored one, rounded to its type: all
  // results have the same bits as those of ElementwiseOps::Add followed by Forward without an
  // addend. Then neither `addend` nor `y` may overlap `x`; `y` may be `addend`.
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& gamma,
                               const Tensor& beta, const Tensor& addend, const Tensor& statistics,
                               const Tensor& y) = 0;

  // Computes dx = addend + rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma, xhat = (x - mean)
  // rstd. `dx` may be `dy`. `addend` (R, C), the gradient of the other branch of a residual
  // connection, may be empty.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x,
                                     const Tensor& gamma, const Tensor& statistics,
                                     const Tensor& addend, const Tensor& dx) = 0;

  // Computes dgamma and dbeta, the column sums of dy xhat and of dy; added to their present
  // contents if `accumulate`.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x,
                                      const Tensor& statistics, const Tensor& dgamma,
                                      const Tensor& dbeta, bool accumulate,
                                      std::byte* workspace) = 0;

  // Returns whether Backward is faster than the two calls above one after the other.
  virtual bool shares_backward() const { return false; }
  // Does both, faster on devices that can read dy and x once for both; the bits are the same. `dx`
  // may not be `dy` here.
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
