#ifndef STAGECOACH_PARTITION_SEARCH_EXPLAIN_H_
#define STAGECOACH_PARTITION_SEARCH_EXPLAIN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partition/plan/receipt.h"
#include "partition/search/candidates.h"
#include "partition/search/cutoff.h"
#include "partition/search/planner.h"

// What PlanJointly says about its answer.
namespace stagecoach::partition {

// In which of its parts the loser's step (work of the busiest rank, waiting because of the order,
// messages) is longer than the winner's, in a few words.
std::string WhyItLost(const Receipt& winner, const Receipt& loser);

// For Receipt::changes. `chosen`: the candidate of the receipt.
absl::StatusOr<std::vector<std::string>> WhatWouldChange(const PlannerRequest& request,
                                                         CandidateSpace& space,
                                                         const Candidate& chosen,
                                                         const Receipt& receipt, Cutoff& cutoff);

// ResourceExhausted for a request of which no candidate fits: by how much, where, what would fit,
// and the table of the plan that comes closest; of all that, what was found before the cutoff.
absl::Status ExplainMisfit(const PlannerRequest& request, CandidateSpace& space, Cutoff& cutoff);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_EXPLAIN_H_
