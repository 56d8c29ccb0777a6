#ifndef STAGECOACH_KERNELS_OPS_OPTIMIZER_H_
#define STAGECOACH_KERNELS_OPS_OPTIMIZER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

// How a parameter follows a statistic of the samples rather than the gradient of a loss. In place
// of the gradient there is the sum of the statistic over micro-batches, and an update of any kind
// is
//   p = (1 - momentum) p + momentum share sum
struct MovingAverage {
  float momentum = 0.1F;
  float share = 1.0F;  // 1 / the number of micro-batches
};

// A parameter and all that an update of it touches. All but `working` are float32; all have the
// same number of elements.
struct ParameterTensors {
  Tensor value;    // what the optimizer updates
  Tensor working;  // `value` rounded to bfloat16, for the layers; empty where they read `value`
  Tensor gradient;
  std::array<Tensor, 2> states;          // AdamW: m, v; SGD: momentum
  bool decays = true;                    // whether weight decay applies
  std::optional<MovingAverage> average;  // instead of the optimizer, which has no states then
};

// Parameters that are updated together: on an accelerator by one launch for all of them. Made by
// OptimizerOps.
class ParameterGroup {
 public:
  virtual ~ParameterGroup() = default;
};

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
  Tensor gradient_scale;  // (1) float32; empty: 1
  int64_t step = 1;
};

// Stochastic gradient descent with momentum:   m = momentum m + g + weight_decay p;   p = p - lr m
struct SgdStep {
  float learning_rate = 1e-2F;
  float momentum = 0.9F;
  float weight_decay = 0.0F;
  Tensor gradient_scale;  // (1) float32; empty: 1
};

// With a `gradient_scale` that is not a number, AdamW and Sgd change nothing. Each element is read
// and written once. Results are the same bits for any number of threads.
class OptimizerOps {
 public:
  virtual ~OptimizerOps() = default;

  // `parameters` are in memory of the device that this is of, and so is whatever the group needs
  // besides. Jobs of `stream` only, as are all calls here. A group must not outlive the device.
  virtual absl::StatusOr<std::unique_ptr<ParameterGroup>> CreateGroup(
      Stream& stream, absl::Span<const ParameterTensors> parameters) = 0;

  virtual absl::Status AdamW(Stream& stream, const AdamWStep& step,
                             const ParameterGroup& group) = 0;
  virtual absl::Status Sgd(Stream& stream, const SgdStep& step, const ParameterGroup& group) = 0;

  // working = value rounded, of each parameter that has one.
  virtual absl::Status RoundParameters(Stream& stream, const ParameterGroup& group) = 0;

  // squares (n) float64, n the size of the group: the sum of squares of each gradient, in double;
  // 0 of a moving average.
  virtual absl::Status SquaredNorms(Stream& stream, const ParameterGroup& group,
                                    const Tensor& squares) = 0;

  // From squares (K, n) float64, each column of which has at most one value that is not 0:
  //   norm (1) float64: the root of the sum of all, added up in the order of columns
  //   scale (1) float32: clip_norm / norm, at most 1; not a number if the norm is not finite, which
  //   it is if all gradients are. A clip_norm of infinity clips nothing.
  virtual absl::Status ClipScale(Stream& stream, const Tensor& squares, float clip_norm,
                                 const Tensor& norm, const Tensor& scale) = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_OPTIMIZER_H_
