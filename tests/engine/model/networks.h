#ifndef STAGECOACH_TESTS_ENGINE_MODEL_NETWORKS_H_
#define STAGECOACH_TESTS_ENGINE_MODEL_NETWORKS_H_

#include <vector>

#include "tests/engine/model/chain_on_device.h"

namespace stagecoach::engine {

// Every built-in layer, alone and behind others: what the tests of gradients run.
std::vector<Network> Networks();
std::vector<Network> ImageNetworks();  // of layers for images

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_MODEL_NETWORKS_H_
