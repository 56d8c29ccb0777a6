#ifndef STAGECOACH_PARTITION_PLAN_SPLIT_PLAN_H_
#define STAGECOACH_PARTITION_PLAN_SPLIT_PLAN_H_

#include "absl/types/span.h"
#include "partition/cost/layer_cost.h"
#include "partition/plan/plan.h"

namespace stagecoach::partition {

// The least bytes of gradients in each part of a divided stage.
inline constexpr int64_t kLeastPartBytes = int64_t{8} << 20;
inline constexpr int kMostParts = 4;

// Returns the plan with stages divided into parts of about equal gradients (schedule::SplitStages),
// so that those of later layers are exchanged while the backward passes of earlier ones run.
// Returns the same plan if there are no replicas, no stage is large enough, or its schedule cannot
// be divided. `layers`: those of the whole model, in the order of the plan, which passes CheckPlan.
Plan SplitForReduction(const Plan& plan, absl::Span<const LayerCost> layers);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_SPLIT_PLAN_H_
