#ifndef STAGECOACH_PARTITION_PLAN_PREPARED_PLAN_H_
#define STAGECOACH_PARTITION_PLAN_PREPARED_PLAN_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/layer_cost.h"
#include "partition/plan/plan.h"
#include "partition/stage_memory.h"
#include "schedule/memory.h"
#include "schedule/schedule.h"

namespace stagecoach::partition {

// A plan with all that follows from it and the model's layers, so that nothing is lowered, proved
// or sized again.
struct PreparedPlan {
  Plan plan;
  std::shared_ptr<const LoweredPlan>
      lowered;        // shared, since it can be large; null only before it is prepared
  PlanReport report;  // of one device of each rank
};

// Where everything of one rank lies under the two lowered schedules of a plan: whose sizes its
// RankReport has. Errors: those of PlanMemory.
struct RankMemoryPlans {
  schedule::MemoryPlan training, evaluation;
};
absl::StatusOr<RankMemoryPlans> PlanRankMemory(const PreparedPlan& plan, schedule::Rank rank);

// Prepares a plan that is given. `layers`: of the whole model. Errors: those of LowerPlan;
// InvalidArgument if the plan is for another number of layers, recomputes
// one that cannot do F again, or a size is negative.
absl::StatusOr<PreparedPlan> PreparePlan(
    Plan plan, const std::vector<LayerCost>& layers, const EndMemory& ends,
    schedule::Transfers transfers = schedule::Transfers::kSeparate,
    const schedule::CollectiveMemory& collectives = {});

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_PREPARED_PLAN_H_
