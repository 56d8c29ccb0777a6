#include "partition/plan/prepared_plan.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace stagecoach::partition {
namespace {

std::vector<schedule::StageMemory> MemoryOfStages(const Plan& plan, const LoweredPlan& lowered,
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

}  // namespace

absl::StatusOr<RankMemoryPlans> PlanRankMemory(const PreparedPlan& plan, schedule::Rank rank) {
  std::vector<schedule::StageMemory> memory;
  for (const StageReport& stage : plan.report.stages) memory.push_back(stage.memory);
  const auto plan_memory = [&](const schedule::Schedule& lowered) {
    return schedule::PlanMemory(lowered, rank, memory, plan.lowered->collectives);
  };
  RankMemoryPlans plans;
  ASSIGN_OR_RETURN(plans.training, plan_memory(plan.lowered->training));
  ASSIGN_OR_RETURN(plans.evaluation, plan_memory(plan.lowered->evaluation));
  return plans;
}

absl::StatusOr<PreparedPlan> PreparePlan(Plan plan, const std::vector<LayerCost>& layers,
                                         const EndMemory& ends, schedule::Transfers transfers,
                                         const schedule::CollectiveMemory& collectives) {
  ASSIGN_OR_RETURN(LoweredPlan lowered, LowerPlan(plan, transfers, collectives));
  if (plan.num_layers != static_cast<int>(layers.size())) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan is for %d layers, the model has %d",
                                                      plan.num_layers, layers.size()));
  }
  RETURN_IF_ERROR(CheckLayers(layers));
  RETURN_IF_ERROR(CheckCanRecompute(plan, layers));
  ASSIGN_OR_RETURN(PlanReport report,
                   ReportPlan(plan, lowered, layers, MemoryOfStages(plan, lowered, layers, ends)));
  return PreparedPlan{.plan = std::move(plan),
                      .lowered = std::make_shared<const LoweredPlan>(std::move(lowered)),
                      .report = std::move(report)};
}

}  // namespace stagecoach::partition
