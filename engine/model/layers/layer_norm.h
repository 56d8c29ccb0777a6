#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_LAYER_NORM_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_LAYER_NORM_H_

#include "engine/model/layer.h"

namespace stagecoach::engine {

// Normalizes each sample to mean 0 and variance 1, then scales and shifts each feature
// (kernels/ops/layer_norm.h). Parameters "gamma", 1, and "beta", 0, of the sample's number of
// elements. The output has the input's shape.
LayerFactory LayerNorm(float epsilon = 1e-5F);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_LAYER_NORM_H_
