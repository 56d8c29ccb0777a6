#ifndef STAGECOACH_KERNELS_OPS_LAYER_NORM_H_
#define STAGECOACH_KERNELS_OPS_LAYER_NORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

struct LayerNormShape {
  int64_t rows = 1;      // R
  int64_t features = 1;  // C
  float epsilon = 1e-5F;
};

// y = (x - mean) rstd gamma + beta, with mean and rstd = 1 / sqrt(variance + epsilon) of each row
// (Ba et al. 2016).
//   x, y, dx, dy (R, C)   gamma, beta, dgamma, dbeta (C)   statistics (R, 2): mean and rstd of each
//   row
class LayerNormOp {
 public:
  virtual ~LayerNormOp() = default;

  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& gamma,
                               const Tensor& beta, const Tensor& statistics, const Tensor& y) = 0;

  // dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma, xhat = (x - mean) rstd. `dx` may be
  // `dy`.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x,
                                     const Tensor& gamma, const Tensor& statistics,
                                     const Tensor& dx) = 0;

  // dgamma = column sums of dy xhat, dbeta = column sums of dy; added to what they hold if
  // `accumulate`.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x,
                                      const Tensor& statistics, const Tensor& dgamma,
                                      const Tensor& dbeta, bool accumulate) = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_LAYER_NORM_H_
