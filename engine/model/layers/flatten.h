#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_FLATTEN_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_FLATTEN_H_

#include "engine/model/layer.h"

namespace stagecoach::engine {

// A sample of any shape as [its elements], in their order: what a linear layer takes as a whole. No
// parameters.
LayerFactory Flatten();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_FLATTEN_H_
