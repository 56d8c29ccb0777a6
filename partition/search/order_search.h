#ifndef STAGECOACH_PARTITION_SEARCH_ORDER_SEARCH_H_
#define STAGECOACH_PARTITION_SEARCH_ORDER_SEARCH_H_

#include "absl/status/statusor.h"
#include "partition/search/candidates.h"
#include "partition/search/found_plans.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {

// Adds plans under orders of our own (schedule/automatic.h) to those found: from the best of these,
// and from cuts of every shape, since one whose named schedules fit badly, or do not, may be the
// fastest under another order. Returns how many orders were considered. docs/planner.md says which
// cuts, and under which limits of what ranks may stash.
absl::StatusOr<int> SearchOrders(const PlannerRequest& request, CandidateSpace& space,
                                 FoundPlans& plans);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_ORDER_SEARCH_H_
