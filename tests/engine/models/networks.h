#ifndef STAGECOACH_TESTS_ENGINE_MODELS_NETWORKS_H_
#define STAGECOACH_TESTS_ENGINE_MODELS_NETWORKS_H_

#include <vector>

#include "tests/engine/nn/chain_on_device.h"

namespace stagecoach::engine {

// Returns every built-in layer, alone and behind others, for the gradient tests.
std::vector<Network> Networks();
std::vector<Network> ImageNetworks();  // Returns networks of image layers.

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_MODELS_NETWORKS_H_
