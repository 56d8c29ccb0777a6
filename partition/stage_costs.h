#ifndef STAGECOACH_PARTITION_STAGE_COSTS_H_
#define STAGECOACH_PARTITION_STAGE_COSTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "partition/layer_cost.h"
#include "partition/plan.h"
#include "partition/stage_memory.h"
#include "schedule/costs.h"
#include "schedule/stash.h"

namespace stagecoach::partition {

// What the stages of a plan cost, for simulations: times are sums over their layers, messages as
// large as the tensors between them, memory as ReportPlan has it. Each layer is updated as soon as
// its gradients are complete, as the runtime does without clipping. Links take no time. Errors:
// those of ReportPlan.
absl::StatusOr<schedule::Costs> StageCosts(const Plan& plan, const std::vector<LayerCost>& layers,
                                           const LossMemory& loss);

// What each stage stashes, in bytes: from F until B, and from B until W (schedule/memory.h).
std::vector<schedule::StageStash> StashBytes(const std::vector<schedule::StageMemory>& stages);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_STAGE_COSTS_H_
