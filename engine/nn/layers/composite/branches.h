#ifndef STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_BRANCHES_H_
#define STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_BRANCHES_H_

#include <vector>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// y = f0(x) + f1(x) + ...: each is a chain of layers, at least one, on the same x, and all outputs
// have one shape. The sum is a binary tree over their order whose left half has the largest power
// of two of them, and so is that of the dx; each addition is rounded to the type of activations. To
// the planner it is one layer: no cut falls inside. Parameters are those of the inner layers, named
// by branch and layer: "0.0.weight", "0.1.weight", "1.0.weight", ...
LayerFactory Branches(std::vector<std::vector<LayerFactory>> branches);

extern const LayerType kBranchesType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_BRANCHES_H_
