#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_SWIGLU_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_SWIGLU_H_

#include "engine/model/layer.h"

namespace stagecoach::engine {

// y = silu(a) b along the last axis, where a is its first half and b its second
// (kernels/ops/swiglu.h): a sample of shape [..., 2 features] gives [..., features]. No parameters.
LayerFactory SwiGlu();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_SWIGLU_H_
