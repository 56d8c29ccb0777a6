#include "partition/layer_cost.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"

namespace stagecoach::partition {

absl::Status CheckLayers(absl::Span<const LayerCost> layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerCost& layer = layers[i];
    const LayerMemory& memory = layer.memory;
    const std::pair<const char*, double> times[] = {
        {"forward_ns", layer.forward_ns},
        {"backward_input_ns", layer.backward_input_ns},
        {"backward_weight_ns", layer.backward_weight_ns},
        {"step_ns", layer.step_ns},
    };
    for (const auto& [field, ns] : times) {
      if (!std::isfinite(ns) || ns < 0) {
        return absl::InvalidArgumentError(
            absl::StrFormat("layer %d (%s): %s is %g, expected a finite time that is not negative",
                            i, layer.name, field, ns));
      }
    }
    const std::pair<const char*, int64_t> sizes[] = {
        {"parameters", layer.parameters},
        {"parameter_bytes", memory.parameter_bytes},
        {"optimizer_bytes", memory.optimizer_bytes},
        {"other_resident_bytes", memory.other_resident_bytes},
        {"input_bytes", memory.input_bytes},
        {"output_bytes", memory.output_bytes},
        {"stash_bytes", memory.stash_bytes},
        {"weight_stash_bytes", memory.weight_stash_bytes},
        {"gradient_stash_bytes", memory.gradient_stash_bytes},
        {"workspace_bytes", memory.workspace_bytes},
    };
    for (const auto& [field, size] : sizes) {
      if (size < 0 || size > schedule::kMaxSizeBytes) {
        return absl::InvalidArgumentError(
            absl::StrFormat("layer %d (%s): %s is %d, expected a number from 0 to %d", i,
                            layer.name, field, size, schedule::kMaxSizeBytes));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::partition
