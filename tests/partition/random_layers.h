#ifndef STAGECOACH_TESTS_PARTITION_RANDOM_LAYERS_H_
#define STAGECOACH_TESTS_PARTITION_RANDOM_LAYERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "partition/cost/layer_cost.h"
#include "partition/cost/stage_memory.h"

namespace stagecoach::partition {

inline schedule::LastUse RandomLastUse(std::mt19937& random) {
  return static_cast<schedule::LastUse>(random() % 3);
}

// Returns counts in [0, below).
inline std::vector<int64_t> RandomCounts(std::mt19937& random, size_t count, unsigned below) {
  std::vector<int64_t> values(count);
  for (int64_t& value : values) value = static_cast<int64_t>(random() % below);
  return values;
}

// Returns `count` layers that pass activations to each other. Times are small whole numbers; every
// field of LayerMemory varies.
inline std::vector<LayerCost> RandomLayers(std::mt19937& random, int count) {
  const auto bytes = [&random](int64_t most) {
    return AlignTensor(static_cast<int64_t>(random() % most));
  };
  std::vector<LayerCost> layers(count);
  int64_t passed_on_bytes = 1 + random() % 4000;
  for (LayerCost& layer : layers) {
    layer.parameters = random() % 1000;
    layer.forward_ns = random() % 5;
    layer.backward_input_ns = random() % 5;
    layer.backward_weight_ns = random() % 5;
    layer.step_ns = random() % 5;
    if (layer.parameters % 2 == 0) {
      layer.shared_backward_ns = std::min(layer.backward_input_ns, layer.backward_weight_ns);
    }
    LayerMemory& memory = layer.memory;
    memory.parameter_bytes = bytes(8000);
    memory.optimizer_bytes = 2 * memory.parameter_bytes;
    memory.other_resident_bytes = bytes(500);
    memory.input_bytes = passed_on_bytes;
    passed_on_bytes = 1 + random() % 4000;
    memory.output_bytes = passed_on_bytes;
    memory.stash_bytes = bytes(3000);
    memory.weight_stash_bytes = bytes(3000);
    memory.gradient_stash_bytes = bytes(3000);
    memory.workspace_bytes = bytes(3000);
    memory.input_last_use = RandomLastUse(random);
    memory.output_last_use = RandomLastUse(random);
    memory.output_gradient_last_use =
        random() % 2 == 0 ? schedule::LastUse::kBackwardInput : schedule::LastUse::kBackwardWeight;
  }
  return layers;
}

inline EndMemory RandomEnds(std::mt19937& random) {
  return {.feed_resident_bytes = static_cast<int64_t>(random() % 500),
          .loss_workspace_bytes = static_cast<int64_t>(random() % 5000),
          .loss_resident_bytes = static_cast<int64_t>(random() % 500),
          .stage_resident_bytes = static_cast<int64_t>(random() % 500)};
}

}  // namespace stagecoach::partition

#endif  // STAGECOACH_TESTS_PARTITION_RANDOM_LAYERS_H_
