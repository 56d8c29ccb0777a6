#ifndef STAGECOACH_PARTITION_PLAN_PREPARED_PLAN_H_
#define STAGECOACH_PARTITION_PLAN_PREPARED_PLAN_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/stage_memory.h"
#include "partition/plan/plan.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {

// A plan with everything that follows from it and the model's layers, so that nothing is lowered,
// proved or sized again.
struct PreparedPlan {
  Plan plan;
  std::shared_ptr<const LoweredPlan>
      lowered;        // shared, since it can be large; null only before it is prepared
  PlanReport report;  // of one device of each rank
};

// The location of everything on one rank under the two lowered schedules of a plan, whose sizes are
// in its RankReport. Errors: those of PlanMemory.
struct RankMemoryPlans {
  schedule::MemoryPlan training, evaluation;
};
absl::StatusOr<RankMemoryPlans> PlanRankMemory(const PreparedPlan& plan, schedule::Rank rank);

// Prepares a given plan. `layers`: those of the whole model. Errors: those of LowerPlan;
// InvalidArgument if the plan is for another number of layers, recomputes one that cannot repeat F,
// or a size is negative.
absl::StatusOr<PreparedPlan> PreparePlan(
    Plan plan, const std::vector<LayerCost>& layers, const EndMemory& ends,
    schedule::Transfers transfers = schedule::Transfers::kSeparate,
    const schedule::CollectiveMemory& collectives = {});

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_PREPARED_PLAN_H_
