#ifndef STAGECOACH_ENGINE_NN_LAYERS_LINEAR_H_
#define STAGECOACH_ENGINE_NN_LAYERS_LINEAR_H_

#include <cstdint>
#include <optional>

#include "engine/nn/layer.h"
#include "engine/nn/layers/layer_type.h"
#include "kernels/ops/linear.h"

namespace stagecoach::engine {

using kernels::Activation;

struct LinearOptions {
  int64_t outputs = 1;
  Activation activation = Activation::kNone;
  bool has_bias = true;
  // Initialization of the weight: uniform with standard deviation gain / sqrt(inputs) (sqrt(2)
  // times that with kRelu); or normal with `deviation`, if set. The mean is 0.
  float gain = 1.0F;
  std::optional<float> deviation = std::nullopt;
};

// y = activation(x w + b) along the last axis: maps a sample of shape [..., inputs] to [...,
// outputs], each position by itself. Parameters "weight" [inputs, outputs] and, with a bias, "bias"
// [outputs], initially 0.
LayerFactory Linear(const LinearOptions& options);
LayerFactory Linear(int64_t outputs, Activation activation = Activation::kNone, float gain = 1.0F,
                    bool has_bias = true);

extern const LayerType kLinearType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_LINEAR_H_
