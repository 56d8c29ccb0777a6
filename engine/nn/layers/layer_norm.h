#ifndef STAGECOACH_ENGINE_NN_LAYERS_LAYER_NORM_H_
#define STAGECOACH_ENGINE_NN_LAYERS_LAYER_NORM_H_

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// Both work along the last axis, each position of a sample by itself, and keep its shape
// (kernels/ops/layer_norm.h). Their parameters have one element per feature.

// Normalizes to mean 0 and variance 1, then scales and shifts each feature. Parameters "gamma", 1,
// and "beta", 0.
LayerFactory LayerNorm(float epsilon = 1e-5F);

// Divides by the root of the mean square, then scales each feature. Parameter "gamma", 1.
LayerFactory RmsNorm(float epsilon = 1e-5F);

extern const LayerType kLayerNormType, kRmsNormType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_LAYER_NORM_H_
