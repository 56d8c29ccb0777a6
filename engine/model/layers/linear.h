#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_LINEAR_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_LINEAR_H_

#include <cstdint>

#include "engine/model/layer.h"
#include "kernels/ops/linear.h"

namespace stagecoach::engine {

using kernels::Activation;

// y = activation(x w + b) along the last axis: a sample of shape [..., inputs] gives [...,
// outputs], each position by itself. Parameters "weight" [inputs, outputs], uniform with mean 0 and
// standard deviation gain / sqrt(inputs) (sqrt(2) times that with kRelu), and, unless `has_bias` is
// false, "bias" [outputs], 0.
LayerFactory Linear(int64_t outputs, Activation activation = Activation::kNone, float gain = 1.0F,
                    bool has_bias = true);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_LINEAR_H_
