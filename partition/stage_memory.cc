#include "partition/stage_memory.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;
using schedule::StageMemory;

// Adds what lies between two neighboring layers of a stage; `slot_bytes` grows to what passes
// through the workspace.
void AddBoundary(const LayerMemory& producer, const LayerMemory& consumer, bool splits_backward,
                 StageMemory& stage, int64_t& slot_bytes) {
  const int64_t bytes = AlignTensor(producer.output_bytes);
  switch (std::max(producer.output_last_use, consumer.input_last_use)) {
    case LastUse::kForward:
      slot_bytes = std::max(slot_bytes, bytes);
      break;
    case LastUse::kBackwardInput:
      stage.stash_bytes += bytes;
      break;
    case LastUse::kBackwardWeight:
      stage.weight_stash_bytes += bytes;
      break;
  }
  if (splits_backward && producer.output_gradient_last_use == LastUse::kBackwardWeight) {
    stage.gradient_stash_bytes += bytes;
  } else {
    slot_bytes = std::max(slot_bytes, bytes);
  }
}

}  // namespace

StagePosition PositionOf(const schedule::Schedule& schedule, schedule::StageId stage) {
  return {.is_first = schedule.is_first(stage),
          .is_last = schedule.is_last(stage),
          .splits_backward = schedule.SplitsBackward(stage)};
}

StageMemory AggregateStage(absl::Span<const LayerMemory> layers, const LossMemory& loss,
                           const StagePosition& position) {
  STAGECOACH_CHECK(!layers.empty(), "a stage has at least one layer");
  StageMemory stage;
  int64_t scratch_bytes = 0;
  int64_t fused_gradient_bytes = 0;
  for (const LayerMemory& memory : layers) {
    stage.parameter_bytes += memory.parameter_bytes;
    stage.gradient_bytes += memory.parameter_bytes;
    stage.optimizer_bytes += memory.optimizer_bytes;
    stage.other_resident_bytes += memory.other_resident_bytes;
    stage.stash_bytes += memory.stash_bytes;
    stage.weight_stash_bytes += memory.weight_stash_bytes;
    scratch_bytes = std::max(scratch_bytes, memory.workspace_bytes);
    if (position.splits_backward) {
      stage.gradient_stash_bytes += memory.gradient_stash_bytes;
    } else {
      fused_gradient_bytes = std::max(fused_gradient_bytes, memory.gradient_stash_bytes);
    }
  }
  int64_t slot_bytes = 0;
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    AddBoundary(layers[i], layers[i + 1], position.splits_backward, stage, slot_bytes);
  }
  stage.workspace_bytes = 2 * slot_bytes + AlignTensor(scratch_bytes) + fused_gradient_bytes;
  if (position.is_last) {
    stage.workspace_bytes = std::max(stage.workspace_bytes, loss.workspace_bytes);
    stage.other_resident_bytes += loss.resident_bytes;
  }

  const LayerMemory& first = layers.front();
  const LayerMemory& last = layers.back();
  stage.input_bytes = first.input_bytes;
  stage.input_last_use = first.input_last_use;
  stage.input_gradient_bytes = position.is_first ? 0 : first.input_bytes;
  stage.output_bytes = last.output_bytes + last.passing_bytes;
  stage.output_last_use = last.output_last_use;
  stage.output_gradient_bytes = stage.output_bytes;
  stage.output_gradient_last_use = last.output_gradient_last_use;
  return stage;
}

}  // namespace stagecoach::partition
