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

// Describes how a parameter follows a statistic of the samples rather than the gradient of a loss.
// The place of the gradient is taken by the sum of the statistic over micro-batches, and an update
// of any kind is
//   p = (1 - momentum) p + momentum share sum
struct MovingAverage {
  float momentum = 0.1F;
  float share = 1.0F;  // 1 / the number of micro-batches
};

// A parameter and everything that its update touches. All tensors but `working` are float32; all
// have the same number of elements.
struct ParameterTensors {
  Tensor value;    // what the optimizer updates
  Tensor working;  // `value` rounded to bfloat16, for the layers; empty if they read `value`
  Tensor gradient;
  std::array<Tensor, 2> states;          // AdamW: m, v; SGD: momentum
  Tensor ema;                            // the average of `value` over the steps; empty: none
  bool decays = true;                    // whether weight decay applies
  float rate_factor = 1.0F;              // the learning rate is the step's times this
  std::optional<float> weight_decay;     // in place of the step's
  std::optional<MovingAverage> average;  // instead of the optimizer, which has no states then

  // Returns its weight decay, given that of the step.
  float DecayOf(float of_step) const { return decays ? weight_decay.value_or(of_step) : 0.0F; }
};

// Parameters that are updated together: on an accelerator by a single launch. Made by OptimizerOps.
class ParameterGroup {
 public:
  virtual ~ParameterGroup() = default;
};

// AdamW (Loshchilov & Hutter 2019), at step t = 1, 2, ...; g is the gradient times
// `gradient_scale`:
//   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
//   p = p - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay p)
// and then, for each parameter that has an exponential moving average of its values:
//   ema = ema + ema_share (p - ema)
struct AdamWStep {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;
  Tensor gradient_scale;  // (1) float32; empty: 1
  int64_t step = 1;
  float ema_share = 0.0F;
};

// Stochastic gradient descent with momentum:   m = momentum m + g + weight_decay p;   p = p - lr m
// and then `ema` as above.
struct SgdStep {
  float learning_rate = 1e-2F;
  float momentum = 0.9F;
  float weight_decay = 0.0F;
  Tensor gradient_scale;  // (1) float32; empty: 1
  float ema_share = 0.0F;
};

// If `gradient_scale` is NaN, AdamW and Sgd change nothing. Each element is read and written once.
// Any number of threads computes the same bits.
class OptimizerOps {
 public:
  virtual ~OptimizerOps() = default;

  // `parameters`, and whatever else the group needs, are in memory of this device. Call this only
  // from jobs of `stream`, like all functions here. A group must not outlive the device.
  virtual absl::StatusOr<std::unique_ptr<ParameterGroup>> CreateGroup(
      Stream& stream, absl::Span<const ParameterTensors> parameters) = 0;

  virtual absl::Status AdamW(Stream& stream, const AdamWStep& step,
                             const ParameterGroup& group) = 0;
  virtual absl::Status Sgd(Stream& stream, const SgdStep& step, const ParameterGroup& group) = 0;

  // Computes working = value rounded, for each parameter that has a working copy.
  virtual absl::Status RoundParameters(Stream& stream, const ParameterGroup& group) = 0;

  // Exchanges value and ema of each parameter that has an ema, and then rounds like
  // RoundParameters. Doing it twice changes nothing.
  virtual absl::Status SwapAverages(Stream& stream, const ParameterGroup& group) = 0;

  // Computes squares (n) float64, where n is the size of the group: the sum of squares of each
  // gradient, in double; 0 for a moving average.
  virtual absl::Status SquaredNorms(Stream& stream, const ParameterGroup& group,
                                    const Tensor& squares) = 0;

  // Computes from squares (K, n) float64, each column of which has at most one nonzero value:
  //   norm (1) float64: the root of the sum of all, added in the order of columns
  //   scale (1) float32: clip_norm / norm, at most 1; NaN if the norm is NaN or infinite. The norm
  //   is finite if all gradients are. An infinite clip_norm clips nothing.
  virtual absl::Status ClipScale(Stream& stream, const Tensor& squares, float clip_norm,
                                 const Tensor& norm, const Tensor& scale) = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_OPTIMIZER_H_
