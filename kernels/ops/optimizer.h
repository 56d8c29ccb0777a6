#ifndef STAGECOACH_KERNELS_OPS_OPTIMIZER_H_
#define STAGECOACH_KERNELS_OPS_OPTIMIZER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

// AdamW (Loshchilov & Hutter 2019), at step t = 1, 2, ...; g is the gradient times
// `gradient_scale`:
//   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
//   p = p - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay p)
struct AdamWStep {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;
  float gradient_scale = 1.0F;
  int64_t step = 1;
};

// Stochastic gradient descent with momentum:   m = momentum m + g + weight_decay p;   p = p - lr m
struct SgdStep {
  float learning_rate = 1e-2F;
  float momentum = 0.9F;
  float weight_decay = 0.0F;
  float gradient_scale = 1.0F;
};

// All tensors of one call are float32 and have the same number of elements. Each element is read
// and written once.
class OptimizerOps {
 public:
  virtual ~OptimizerOps() = default;

  virtual absl::Status AdamW(Stream& stream, const AdamWStep& step, const Tensor& parameter,
                             const Tensor& gradient, const Tensor& m, const Tensor& v) = 0;
  virtual absl::Status Sgd(Stream& stream, const SgdStep& step, const Tensor& parameter,
                           const Tensor& gradient, const Tensor& momentum) = 0;

  // result (1) float64 = sum of squares of x (float32), in double, the same bits for any number of
  // threads.
  virtual absl::Status SquaredNorm(Stream& stream, const Tensor& x, const Tensor& result) = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_OPTIMIZER_H_
