#include "partition/layer_cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace stagecoach::partition {

std::vector<LayerMemory> MemoryOf(absl::Span<const LayerCost> layers) {
  std::vector<LayerMemory> memory;
  for (const LayerCost& layer : layers) memory.push_back(layer.memory);
  return memory;
}

LayerCost Recomputed(const LayerCost& layer) {
  LayerCost again = layer;
  again.backward_input_ns += layer.forward_ns;
  again.flops += layer.flops / 3;  // B and W are about two F
  again.memory = RecomputedMemory(layer);
  again.recompute_stash_bytes.reset();
  return again;
}

LayerMemory RecomputedMemory(const LayerMemory& layer, int64_t recompute_stash_bytes) {
  LayerMemory memory = layer;
  memory.dropped = DroppedStash{AlignTensor(layer.stash_bytes), layer.weight_stash_bytes};
  memory.workspace_bytes += memory.dropped->stash_bytes;
  memory.gradient_stash_bytes += memory.dropped->weight_stash_bytes;
  memory.stash_bytes = recompute_stash_bytes;
  memory.weight_stash_bytes = 0;
  memory.input_last_use = std::max(memory.input_last_use, schedule::LastUse::kBackwardInput);
  return memory;
}

LayerMemory RecomputedMemory(const LayerCost& layer) {
  STAGECOACH_CHECK(layer.recompute_stash_bytes.has_value(), "this layer cannot do F again");
  return RecomputedMemory(layer.memory, *layer.recompute_stash_bytes);
}

absl::Status CheckLayers(absl::Span<const LayerCost> layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerCost& layer = layers[i];
    const LayerMemory& memory = layer.memory;
    const std::pair<const char*, double> times[] = {
        {"forward_ns", layer.forward_ns},
        {"backward_input_ns", layer.backward_input_ns},
        {"backward_weight_ns", layer.backward_weight_ns},
        {"shared_backward_ns", layer.shared_backward_ns},
        {"step_ns", layer.step_ns},
        {"flops", layer.flops},
        {"spread", layer.spread},
    };
    for (const auto& [field, ns] : times) {
      if (!std::isfinite(ns) || ns < 0) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "layer %d (%s): %s is %g, expected a finite number that is not negative", i, layer.name,
            field, ns));
      }
    }
    if (layer.shared_backward_ns > std::min(layer.backward_input_ns, layer.backward_weight_ns)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "layer %d (%s): shared_backward_ns is %g, expected at most backward_input_ns, %g, and "
          "backward_weight_ns, %g",
          i, layer.name, layer.shared_backward_ns, layer.backward_input_ns,
          layer.backward_weight_ns));
    }
    const std::pair<const char*, int64_t> sizes[] = {
        {"parameters", layer.parameters},
        {"parameter_bytes", memory.parameter_bytes},
        {"optimizer_bytes", memory.optimizer_bytes},
        {"averaged_bytes", memory.averaged_bytes},
        {"other_resident_bytes", memory.other_resident_bytes},
        {"working_bytes", memory.working_bytes},
        {"cache_bytes", memory.cache_bytes},
        {"input_bytes", memory.input_bytes},
        {"output_bytes", memory.output_bytes},
        {"passing_bytes", memory.passing_bytes},
        {"skip_area_bytes", memory.skip_area_bytes},
        {"stash_bytes", memory.stash_bytes},
        {"weight_stash_bytes", memory.weight_stash_bytes},
        {"gradient_stash_bytes", memory.gradient_stash_bytes},
        {"workspace_bytes", memory.workspace_bytes},
        {"recompute_stash_bytes", layer.recompute_stash_bytes.value_or(0)},
    };
    for (const auto& [field, size] : sizes) {
      if (size < 0 || size > schedule::kMaxSizeBytes) {
        return absl::InvalidArgumentError(
            absl::StrFormat("layer %d (%s): %s is %d, expected a number from 0 to %d", i,
                            layer.name, field, size, schedule::kMaxSizeBytes));
      }
    }
    if (memory.working_bytes > memory.other_resident_bytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("layer %d (%s): working_bytes is %d, expected at most "
                          "other_resident_bytes, %d",
                          i, layer.name, memory.working_bytes, memory.other_resident_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::partition
