#ifndef STAGECOACH_PARTITION_SEARCH_EXPLAIN_H_
#define STAGECOACH_PARTITION_SEARCH_EXPLAIN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/candidates.h"
#include "partition/search/planner.h"
#include "partition/search/search_budget.h"

// FindPlan's explanations of its answer.
namespace stagecoach::partition {

// Says in a few words in which of its parts the loser's step (work of the busiest rank, waiting
// because of the order, messages) is longer than the winner's.
std::string WhyItLost(const PlanEvaluation& winner, const PlanEvaluation& loser);

// Returns PlanEvaluation::changes. `chosen`: the candidate of the evaluation.
absl::StatusOr<std::vector<std::string>> WhatWouldChange(const PlannerRequest& request,
                                                         CandidateSpace& space,
                                                         const Candidate& chosen,
                                                         const PlanEvaluation& evaluation,
                                                         SearchBudget& budget);

// Returns ResourceExhausted for a request of which no candidate fits: by how much, where, what
// would fit, and the table of the plan that comes closest; as much of this as was found within the
// budget.
absl::Status ExplainMisfit(const PlannerRequest& request, CandidateSpace& space,
                           SearchBudget& budget);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_EXPLAIN_H_
