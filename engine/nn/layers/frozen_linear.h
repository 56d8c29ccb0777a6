#ifndef STAGECOACH_ENGINE_NN_LAYERS_FROZEN_LINEAR_H_
#define STAGECOACH_ENGINE_NN_LAYERS_FROZEN_LINEAR_H_

#include <cstdint>

#include "engine/nn/layer.h"
#include "engine/nn/layers/linear.h"

namespace stagecoach::engine {

// Returns Linear(options) with adapters, or with a quantized weight. Pre-condition: it has one of
// them.
LayerFactory FrozenLinear(const LinearOptions& options);

// Returns the initial values of a linear layer's weight.
Init InitialWeight(const LinearOptions& options, int64_t inputs);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_FROZEN_LINEAR_H_
