#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_LINEAR_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_LINEAR_H_

#include <cstdint>
#include <optional>

#include "engine/model/layer.h"
#include "kernels/ops/linear.h"

namespace stagecoach::engine {

using kernels::Activation;

struct LinearOptions {
  int64_t outputs = 1;
  Activation activation = Activation::kNone;
  bool has_bias = true;
  // Of the weight at the start: uniform with standard deviation gain / sqrt(inputs) (sqrt(2) times
  // that with kRelu); or normal with the deviation that is given. The mean is 0.
  float gain = 1.0F;
  std::optional<float> deviation = std::nullopt;
};

// y = activation(x w + b) along the last axis: a sample of shape [..., inputs] gives [...,
// outputs], each position by itself. Parameters "weight" [inputs, outputs] and, with a bias, "bias"
// [outputs], which is 0 at the start.
LayerFactory Linear(const LinearOptions& options);
LayerFactory Linear(int64_t outputs, Activation activation = Activation::kNone, float gain = 1.0F,
                    bool has_bias = true);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_LINEAR_H_
