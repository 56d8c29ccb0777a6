#ifndef STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_RESIDUAL_H_
#define STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_RESIDUAL_H_

#include <vector>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// y = s(x) + f(x), and then, if `relu`, the larger of that and 0: f is the given layers in sequence
// (at least one), and s those of `shortcut`, or x itself if there are none. Both have the same
// output shape. To the planner it is one layer: no cut falls inside. Parameters are those of the
// inner layers, named "0.gamma", "1.weight", ..., "shortcut.0.weight", ... With `relu`, CPU devices
// only.
LayerFactory Residual(std::vector<LayerFactory> layers, std::vector<LayerFactory> shortcut = {},
                      bool relu = false);

extern const LayerType kResidualType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_RESIDUAL_H_
