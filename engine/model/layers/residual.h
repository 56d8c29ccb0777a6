#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_RESIDUAL_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_RESIDUAL_H_

#include <vector>

#include "engine/model/layer.h"

namespace stagecoach::engine {

// y = x + f(x), where f is the given layers one after the other (at least one; their output has the
// shape of their input). To the planner it is one layer: no cut falls inside. Parameters are those
// of the inner layers, named "0.gamma", "1.weight", ...
LayerFactory Residual(std::vector<LayerFactory> layers);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_RESIDUAL_H_
