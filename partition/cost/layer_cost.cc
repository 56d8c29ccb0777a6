#include "partition/cost/layer_cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "partition/cost/layer_fields.h"

namespace stagecoach::partition {
namespace {

absl::Status CheckRepeated(const LayerCost& layer, size_t index) {
  if (!layer.repeated.has_value()) return absl::OkStatus();
  const LayerMemory& memory = layer.memory;
  const auto error = [&](const char* field, int64_t bytes, const char* whole, int64_t all) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d (%s): %s is %d, expected at least 0 and at most %s, %d", index,
                        layer.name, field, bytes, whole, all));
  };
  const RepeatedPart& part = *layer.repeated;
  if (part.stash_bytes < 0 || part.stash_bytes > memory.stash_bytes) {
    return error("repeated_stash_bytes", part.stash_bytes, "stash_bytes", memory.stash_bytes);
  }
  if (part.weight_stash_bytes < 0 || part.weight_stash_bytes > memory.weight_stash_bytes) {
    return error("repeated_weight_stash_bytes", part.weight_stash_bytes, "weight_stash_bytes",
                 memory.weight_stash_bytes);
  }
  if (part.forward_ns > layer.forward_ns) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d (%s): repeated_forward_ns is %g, expected at most forward_ns, %g",
                        index, layer.name, part.forward_ns, layer.forward_ns));
  }
  return absl::OkStatus();
}

absl::Status CheckTimes(const LayerCost& layer, size_t index) {
  const auto check = [&](const char* field, double value) {
    if (std::isfinite(value) && value >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d (%s): %s is %g, expected a finite number that is not negative",
                        index, layer.name, field, value));
  };
  for (const TimeField& field : kTimeFields) {
    RETURN_IF_ERROR(check(field.name, layer.*field.value));
  }
  RETURN_IF_ERROR(check("repeated_forward_ns", layer.again_ns()));
  RETURN_IF_ERROR(check("repeated_flops", layer.repeated.has_value() ? layer.repeated->flops : 0));
  if (layer.shared_backward_ns <= std::min(layer.backward_input_ns, layer.backward_weight_ns)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "layer %d (%s): shared_backward_ns is %g, expected at most backward_input_ns, %g, and "
      "backward_weight_ns, %g",
      index, layer.name, layer.shared_backward_ns, layer.backward_input_ns,
      layer.backward_weight_ns));
}

absl::Status CheckSizes(const LayerCost& layer, size_t index) {
  const auto check = [&](const char* field, int64_t size) {
    if (size >= 0 && size <= schedule::kMaxSizeBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d (%s): %s is %d, expected a number from 0 to %d", index,
                        layer.name, field, size, schedule::kMaxSizeBytes));
  };
  RETURN_IF_ERROR(check("parameters", layer.parameters));
  for (const BytesField& field : kBytesFields) {
    RETURN_IF_ERROR(check(field.name, layer.memory.*field.value));
  }
  return check("recompute_stash_bytes", layer.recompute_stash_bytes.value_or(0));
}

}  // namespace

std::vector<LayerMemory> MemoryOf(absl::Span<const LayerCost> layers) {
  std::vector<LayerMemory> memory;
  for (const LayerCost& layer : layers) memory.push_back(layer.memory);
  return memory;
}

void SetRepeated(const RepeatedPart& part, LayerCost& layer) {
  const LayerMemory& memory = layer.memory;
  STAGECOACH_CHECK(part.stash_bytes <= memory.stash_bytes &&
                       part.weight_stash_bytes <= memory.weight_stash_bytes,
                   "an operator leaves no more than its layer");
  layer.repeated = part;
  layer.recompute_stash_bytes =
      memory.stash_bytes - part.stash_bytes + memory.weight_stash_bytes - part.weight_stash_bytes;
}

LayerCost Recomputed(const LayerCost& layer) {
  LayerCost again = layer;
  again.backward_input_ns += layer.again_ns();
  // B and W take about twice the flops of F.
  again.flops += layer.repeated.has_value() ? layer.repeated->flops : layer.flops / 3;
  again.memory = RecomputedMemory(layer);
  again.recompute_stash_bytes.reset();
  again.repeated.reset();
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
  if (!layer.repeated.has_value()) {
    return RecomputedMemory(layer.memory, *layer.recompute_stash_bytes);
  }
  LayerMemory memory = layer.memory;
  const RepeatedPart& part = *layer.repeated;
  memory.dropped = DroppedStash{AlignTensor(part.stash_bytes), part.weight_stash_bytes};
  memory.workspace_bytes += memory.dropped->stash_bytes;
  memory.gradient_stash_bytes += part.weight_stash_bytes;
  memory.stash_bytes -= part.stash_bytes;
  memory.weight_stash_bytes -= part.weight_stash_bytes;
  return memory;
}

absl::Status CheckLayers(absl::Span<const LayerCost> layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerCost& layer = layers[i];
    const LayerMemory& memory = layer.memory;
    RETURN_IF_ERROR(CheckTimes(layer, i));
    RETURN_IF_ERROR(CheckSizes(layer, i));
    RETURN_IF_ERROR(CheckRepeated(layer, i));
    if (memory.working_bytes > memory.other_resident_bytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("layer %d (%s): working_bytes is %d, expected at most "
                          "other_resident_bytes, %d",
                          i, layer.name, memory.working_bytes, memory.other_resident_bytes));
    }
    if (memory.frozen_bytes > memory.other_resident_bytes - memory.working_bytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "layer %d (%s): frozen_bytes is %d, expected at most the rest of other_resident_bytes, "
          "%d",
          i, layer.name, memory.frozen_bytes, memory.other_resident_bytes - memory.working_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::partition
