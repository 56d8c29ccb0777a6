#ifndef STAGECOACH_PARTITION_PLAN_STAGE_COSTS_H_
#define STAGECOACH_PARTITION_PLAN_STAGE_COSTS_H_

#include <vector>

#include "partition/layer_cost.h"
#include "partition/plan/plan.h"
#include "partition/stage_memory.h"
#include "schedule/costs.h"
#include "schedule/stash.h"

namespace stagecoach::partition {

// What the stages of a plan cost, for simulations: times are sums over their layers, messages as
// large as the tensors between them, memory as ReportPlan has it. Each layer is updated as soon as
// its gradients are complete, as the runtime does without clipping. Links take no time. `report`:
// of the plan (ReportPlan) of a model with these layers.
schedule::Costs StageCosts(const PlanReport& report, const std::vector<LayerCost>& layers);

// What each stage stashes, in bytes: from F until B, and from B until W (schedule/memory.h).
std::vector<schedule::StageStash> StashBytes(const std::vector<schedule::StageMemory>& stages);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_STAGE_COSTS_H_
