#include "partition/plan/compiled_plan.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace stagecoach::partition {
namespace {

std::vector<schedule::StageMemory> MemoryOfStages(const Plan& plan, const LoweredSchedules& lowered,
                                                  const std::vector<LayerCost>& layers,
                                                  const EndMemory& ends) {
  std::vector<LayerMemory> of_layers = MemoryOf(layers);
  for (const int layer : plan.recomputed) {
    of_layers[static_cast<size_t>(layer)] = RecomputedMemory(layers[static_cast<size_t>(layer)]);
  }
  std::vector<schedule::StageMemory> memory;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const auto first = static_cast<size_t>(plan.first(stage));
    const size_t count = static_cast<size_t>(plan.last(stage)) + 1 - first;
    memory.push_back(
        LayOutStage(absl::MakeConstSpan(of_layers).subspan(first, count), ends,
                    PositionOf(lowered.training, schedule::StageId(stage), lowered.replication)));
  }
  return memory;
}

absl::Status CheckCanRecompute(const Plan& plan, const std::vector<LayerCost>& layers) {
  for (const int layer : plan.recomputed) {
    const LayerCost& cost = layers[static_cast<size_t>(layer)];
    if (cost.recompute_stash_bytes.has_value()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("the plan recomputes layer %d (%s), which has nothing to save by that: "
                        "leave it out",
                        layer, cost.name));
  }
  return absl::OkStatus();
}

std::vector<StageReport> StagesOf(const Plan& plan, absl::Span<const LayerCost> layers,
                                  absl::Span<const schedule::StageMemory> memory) {
  std::vector<StageReport> stages;
  double batch_ns = 0;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    StageReport own = {.rank = plan.schedule.rank_of(schedule::StageId(stage)),
                       .first_layer = plan.first(stage),
                       .last_layer = plan.last(stage),
                       .memory = memory[static_cast<size_t>(stage)]};
    for (int i = own.first_layer; i <= own.last_layer; ++i) {
      const LayerCost& layer = layers[static_cast<size_t>(i)];
      const bool is_done_again =
          std::binary_search(plan.recomputed.begin(), plan.recomputed.end(), i);
      own.parameters += layer.parameters;
      own.time_share += is_done_again ? Recomputed(layer).batch_ns(plan.schedule.num_micro_batches)
                                      : layer.batch_ns(plan.schedule.num_micro_batches);
    }
    batch_ns += own.time_share;
    stages.push_back(own);
  }
  for (StageReport& stage : stages) {
    stage.time_share = batch_ns > 0 ? stage.time_share / batch_ns : 1.0 / plan.num_stages();
  }
  return stages;
}

}  // namespace

std::vector<schedule::StageMemory> CompiledPlan::memory_of_stages() const {
  std::vector<schedule::StageMemory> memory;
  for (const StageReport& stage : stages) memory.push_back(stage.memory);
  return memory;
}

absl::StatusOr<CompiledPlan> CompileLowered(Plan plan,
                                            std::shared_ptr<const LoweredSchedules> lowered,
                                            absl::Span<const LayerCost> layers,
                                            absl::Span<const schedule::StageMemory> memory) {
  CompiledPlan compiled = {.plan = std::move(plan), .lowered = std::move(lowered)};
  compiled.stages = StagesOf(compiled.plan, layers, memory);
  ASSIGN_OR_RETURN(compiled.ranks,
                   ReportRanks(compiled.lowered->training, compiled.lowered->evaluation, memory,
                               compiled.lowered->collectives));
  return compiled;
}

absl::StatusOr<CompiledPlan> CompilePlan(Plan plan, const std::vector<LayerCost>& layers,
                                         const EndMemory& ends, schedule::Transfers transfers,
                                         const schedule::CollectiveMemory& collectives) {
  ASSIGN_OR_RETURN(LoweredSchedules lowered, LowerPlan(plan, transfers, collectives));
  if (plan.num_layers != static_cast<int>(layers.size())) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan is for %d layers, the model has %d",
                                                      plan.num_layers, layers.size()));
  }
  RETURN_IF_ERROR(CheckLayers(layers));
  RETURN_IF_ERROR(CheckCanRecompute(plan, layers));
  const std::vector<schedule::StageMemory> memory = MemoryOfStages(plan, lowered, layers, ends);
  return CompileLowered(std::move(plan),
                        std::make_shared<const LoweredSchedules>(std::move(lowered)), layers,
                        memory);
}

}  // namespace stagecoach::partition
