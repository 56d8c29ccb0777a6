#ifndef STAGECOACH_ENGINE_NN_LAYERS_IMAGE_FLATTEN_H_
#define STAGECOACH_ENGINE_NN_LAYERS_IMAGE_FLATTEN_H_

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// Reshapes a sample of any shape to [its elements], in their order, as a linear layer takes it as a
// whole. No parameters.
LayerFactory Flatten();

extern const LayerType kFlattenType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_IMAGE_FLATTEN_H_
