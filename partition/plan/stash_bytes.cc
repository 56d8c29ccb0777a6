#include "partition/plan/stage_costs.h"

#include <cmath>

namespace stagecoach::partition {
namespace {

using schedule::AlignBlock;
using schedule::LastUse;
using schedule::StageMemory;

schedule::StageTimes TimesOf(const StageReport& report, const std::vector<LayerCost>& layers) {
  double forward_ns = 0;
  double backward_input_ns = 0;
  double backward_weight_ns = 0;
  double step_ns = 0;
  for (int layer = report.first_layer; layer <= report.last_layer; ++layer) {
    const LayerCost& cost = layers[static_cast<size_t>(layer)];
    forward_ns += cost.forward_ns;
    backward_input_ns += cost.backward_input_ns;
    backward_weight_ns += cost.backward_weight_ns;
    step_ns += cost.step_ns;
  }
  return {.forward_ns = std::llround(forward_ns),
          .backward_input_ns = std::llround(backward_input_ns),
          .backward_weight_ns = std::llround(backward_weight_ns),
          .backward_ns = std::llround(backward_input_ns + backward_weight_ns),
          .step_ns = std::llround(step_ns),
          .output_bytes = report.memory.output_bytes,
          .input_gradient_bytes = report.memory.input_gradient_bytes};
}

}  // namespace

schedule::Costs StageCosts(const PlanReport& report, const std::vector<LayerCost>& layers) {
  schedule::Costs costs;
  costs.steps_in_backward = true;
  for (const StageReport& stage : report.stages) {
    costs.stages.push_back(TimesOf(stage, layers));
    costs.memory.push_back(stage.memory);
  }
  return costs;
}

std::vector<schedule::StageStash> StashBytes(const std::vector<StageMemory>& stages) {
  std::vector<schedule::StageStash> stash;
  for (const StageMemory& memory : stages) {
    const auto bytes_kept = [](int64_t bytes, bool kept) {
      return kept ? static_cast<double>(AlignBlock(bytes)) : 0.0;
    };
    const auto until_weight = [&](int64_t bytes, LastUse last_use) {
      return bytes_kept(bytes, last_use == LastUse::kBackwardWeight);
    };
    schedule::StageStash& own = stash.emplace_back();
    own.forward = bytes_kept(memory.stash_bytes, true) +
                  bytes_kept(memory.weight_stash_bytes, true) +
                  bytes_kept(memory.input_bytes, memory.input_last_use != LastUse::kForward) +
                  bytes_kept(memory.output_bytes, memory.output_last_use != LastUse::kForward);
    own.weight = bytes_kept(memory.weight_stash_bytes, true) +
                 bytes_kept(memory.gradient_stash_bytes, true) +
                 until_weight(memory.input_bytes, memory.input_last_use) +
                 until_weight(memory.output_bytes, memory.output_last_use) +
                 until_weight(memory.output_gradient_bytes, memory.output_gradient_last_use);
  }
  return stash;
}

}  // namespace stagecoach::partition
