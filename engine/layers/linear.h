#ifndef STAGECOACH_ENGINE_LAYERS_LINEAR_H_
#define STAGECOACH_ENGINE_LAYERS_LINEAR_H_

#include <cstdint>

#include "engine/layer.h"
#include "kernels/ops/linear.h"

namespace stagecoach::engine {

using kernels::Activation;

// y = activation(x w + b) on samples of any shape, which it sees flattened; output [outputs]. Parameters "weight" [inputs, outputs],
// uniform in +-sqrt(3 / inputs) (variance 1 / inputs; twice that with kRelu), and "bias" [outputs], 0.
LayerFactory Linear(int64_t outputs, Activation activation = Activation::kNone);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_LAYERS_LINEAR_H_
