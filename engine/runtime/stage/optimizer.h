#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_OPTIMIZER_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_OPTIMIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops/optimizer.h"
#include "kernels/tensor.h"
#include "partition/cost/analytic.h"

namespace stagecoach::engine {

// Updates parameters by their gradients (kernels/ops/optimizer.h has the formulas). Regular value
// type.
struct Optimizer {
  enum class Kind : uint8_t { kAdamW, kSgd };
  Kind kind = Kind::kAdamW;
  float weight_decay = 0.01F;  // not applied to biases and normalizations
  // Hyper-parameters: OptimizerType says whose.
  float beta1 = 0.9F, beta2 = 0.999F, epsilon = 1e-8F;
  float momentum = 0.9F;
  float clip_norm = 0.0F;  // scales gradients so that their global norm is at most this; 0: never
  // Decay of an exponential moving average (EMA) of each parameter, which evaluations use and
  // checkpoints have as the parameter's value; 0: none.
  float ema_decay = 0.0F;
  // Updates wait until all gradients are known, and change nothing if one is NaN or infinite;
  // implied by clipping.
  bool checks_gradients = false;

  static Optimizer AdamW() { return {}; }
  static Optimizer Sgd(float momentum = 0.9F) {
    return {.kind = Kind::kSgd, .weight_decay = 0.0F, .momentum = momentum};
  }

  // Number of float tensors of a parameter's size kept for each parameter: those of the optimizer's
  // type, which start at 0, and the average, if there is one.
  int states() const;
  bool has_ema() const { return ema_decay > 0.0F; }
  // Returns the number of the average among the states. Pre-condition: has_ema().
  int ema_state() const { return states() - 1; }
  // Returns the share that the new value gets in the average at a step, which counts from 1. The
  // average starts at the initial value and follows faster at first, so that it soon forgets it:
  // the decay is that of the options or, if that is less, (1 + step) / (10 + step).
  float EmaShareAt(int64_t step) const;
  // True if the norm of all gradients is computed before any update.
  bool waits_for_norm() const { return clip_norm > 0.0F || checks_gradients; }
  // Names a state like PyTorch's optimizers do: "exp_avg", "exp_avg_sq"; "momentum_buffer"; "ema".
  // Pre-condition: in [0, states()).
  const char* state_name(int state) const;
  // Returns the work of updating that many parameters, for the cost model.
  partition::Work StepWork(int64_t parameters) const;

  friend bool operator==(const Optimizer&, const Optimizer&) = default;
};

// A number that an optimizer has in addition to weight decay and the learning rate.
struct HyperParameter {
  enum class Range : uint8_t { kFraction, kPositive };  // [0, 1); above 0

  const char* name = nullptr;  // "beta1": in manifests, and of its flag
  float Optimizer::*value = nullptr;
  Range range = Range::kFraction;
  const char* help = nullptr;  // null: there is no flag
};

struct UpdateStep;

// What there is to know about a kind of optimizer: a row of OptimizerTypes().
struct OptimizerType {
  Optimizer defaults;          // of this kind
  const char* name = nullptr;  // "adamw"
  std::vector<const char*> states;
  std::vector<HyperParameter> hyper_parameters;
  // The default learning rate; for the default network at most `rate_times_width` / width, if that
  // is not 0.
  float learning_rate = 0.0F, rate_times_width = 0.0F;
  absl::Status (*update)(const Optimizer& optimizer, const UpdateStep& step,
                         kernels::Device& device, const kernels::ParameterGroup& group) = nullptr;

  bool Has(const HyperParameter& parameter) const;
};

// Returns the place of a state among the tensors of a parameter.
kernels::Tensor& StateOf(const Optimizer& optimizer, kernels::ParameterTensors& tensors, int state);

// Returns all of them, in the order of `kind`.
absl::Span<const OptimizerType> OptimizerTypes();
const OptimizerType& TypeOf(const Optimizer& optimizer);
// Returns null if none has this name.
const OptimizerType* FindOptimizerType(absl::string_view name);
// Returns the names of all that have the hyper-parameter, or of all: "adamw or sgd".
std::string ListOptimizers(const HyperParameter* parameter = nullptr);
// Returns the hyper-parameters of all optimizers, each once.
absl::Span<const HyperParameter> HyperParameters();

// Returns InvalidArgument if a coefficient is out of its range.
absl::Status CheckOptimizer(const Optimizer& optimizer);

// Returns true if devices of that kind update each layer as soon as its gradients are complete,
// while the cache still has them; false if they update all of a stage's layers at the end of the
// step, in one launch. The results are the same.
inline bool UpdatesInBackward(const Optimizer& optimizer, kernels::DeviceKind kind) {
  return kind == kernels::DeviceKind::kCpu && !optimizer.waits_for_norm();
}

// The inputs of one update besides the tensors.
struct UpdateStep {
  int64_t step = 1;  // counts from 1
  float learning_rate = 1e-3F;
  kernels::Tensor gradient_scale;  // (1) float32 in the device's memory, from the norm; empty: 1
};

// Updates the parameters of a group in place, in a job of the device's stream.
absl::Status UpdateParameters(const Optimizer& optimizer, const UpdateStep& step,
                              kernels::Device& device, const kernels::ParameterGroup& group);

// Sets the average of each parameter that has one to its value.
absl::Status CopyToAverages(kernels::Stream& stream,
                            absl::Span<const kernels::ParameterTensors> parameters);

// Performs an update of `parameters` that changes nothing but their averages, which have not
// started, while gradients and states are 0: it loads what updates need, and waits for that.
absl::Status WarmUpUpdate(const Optimizer& optimizer, kernels::Device& device,
                          absl::Span<const kernels::ParameterTensors> parameters);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_OPTIMIZER_H_
