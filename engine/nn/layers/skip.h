#ifndef STAGECOACH_ENGINE_NN_LAYERS_SKIP_H_
#define STAGECOACH_ENGINE_NN_LAYERS_SKIP_H_

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// Layers that take a skip (Model::skips). They have no parameters, and keep nothing for backward.

// y = x + skip, of one shape.
LayerFactory AddSkip();

// y = x, followed by the skip along the first axis of a sample: channels of an image, features of a
// vector, positions of a sequence. The other axes must be equal.
LayerFactory ConcatSkip();

extern const LayerType kAddSkipType, kConcatSkipType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_SKIP_H_
