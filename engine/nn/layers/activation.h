#ifndef STAGECOACH_ENGINE_NN_LAYERS_ACTIVATION_H_
#define STAGECOACH_ENGINE_NN_LAYERS_ACTIVATION_H_

#include <array>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"
#include "kernels/activation.h"

namespace stagecoach::engine {

using kernels::Activation;

// y = activation(x), for samples of any shape (kernels/activation.h): used behind layers that have
// no activation of their own. No parameters.
LayerFactory Activate(Activation activation);
inline LayerFactory Relu() { return Activate(Activation::kRelu); }
inline LayerFactory Tanh() { return Activate(Activation::kTanh); }
inline LayerFactory Sigmoid() { return Activate(Activation::kSigmoid); }

// A type for each activation but kNone, by its name.
extern const std::array<LayerType, kernels::kAllActivations.size() - 1> kActivationTypes;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_ACTIVATION_H_
