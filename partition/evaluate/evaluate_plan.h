#ifndef STAGECOACH_PARTITION_EVALUATE_EVALUATE_PLAN_H_
#define STAGECOACH_PARTITION_EVALUATE_EVALUATE_PLAN_H_

#include "absl/status/statusor.h"
#include "partition/cost/cluster.h"
#include "partition/cost/profile.h"
#include "partition/plan/plan.h"
#include "partition/plan/plan_evaluation.h"

namespace stagecoach::partition {

// Evaluates a plan as it stands: costs, memory and simulation, but nothing that a search would know
// (`considered` is 0, the lower bound the objective, runner-up and changes are empty).
// InvalidArgument: the plan is not one for this profile and cluster; says why. CheckFits says
// whether it fits.
absl::StatusOr<PlanEvaluation> EvaluatePlan(const Plan& plan, const Profile& profile,
                                            const Cluster& cluster,
                                            PlanObjective objective = PlanObjective::kStep);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EVALUATE_EVALUATE_PLAN_H_
