#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_RELU_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_RELU_H_

#include "engine/model/layer.h"

namespace stagecoach::engine {

// y = max(0, x), for samples of any shape (kernels/ops/relu.h): behind layers that have no
// activation of their own. No parameters. On CPU devices only.
LayerFactory Relu();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_RELU_H_
