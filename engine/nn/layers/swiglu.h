#ifndef STAGECOACH_ENGINE_NN_LAYERS_SWIGLU_H_
#define STAGECOACH_ENGINE_NN_LAYERS_SWIGLU_H_

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// y = silu(a) b along the last axis, where a is its first half and b its second
// (kernels/ops/swiglu.h): maps a sample of shape [..., 2 features] to [..., features]. No
// parameters.
LayerFactory SwiGlu();
// The same with the tanh form of gelu(a) in place of silu(a).
LayerFactory GeGlu();

extern const LayerType kSwiGluType;
extern const LayerType kGeGluType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_SWIGLU_H_
