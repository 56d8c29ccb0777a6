#ifndef STAGECOACH_PARTITION_SEARCH_STARTS_H_
#define STAGECOACH_PARTITION_SEARCH_STARTS_H_

#include "absl/status/statusor.h"
#include "partition/cost/replication.h"
#include "partition/plan/plan.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {

// Returns the replication that the request implies for that number of replicas.
Replication ReplicationFor(const PlannerRequest& request, int replicas);

// Evaluates one of the request's starts, or any other plan, as an answer to the request.
// InvalidArgument: it is a plan for something else; says what differs. ResourceExhausted: it does
// not fit.
absl::StatusOr<PlanEvaluation> EvaluateStart(const Plan& plan, const PlannerRequest& request);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_STARTS_H_
