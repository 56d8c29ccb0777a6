#ifndef STAGECOACH_PARTITION_SEARCH_ORDER_SEARCH_H_
#define STAGECOACH_PARTITION_SEARCH_ORDER_SEARCH_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/search/candidates.h"
#include "partition/search/found_plans.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {

// Adds plans under orders of our own (schedule/search/automatic.h) to those found: from the best of
// these, and from cuts of every shape, since one whose named schedules fit badly, or do not, may be
// the fastest under another order. Returns how many orders were considered. docs/planner.md says
// which cuts are used, and which limits apply to what ranks may stash. `scale`: multiplies the
// work.
absl::StatusOr<int> SearchOrders(const PlannerRequest& request, CandidateSpace& space,
                                 FoundPlans& plans, int scale = 1);

// Does the same from the cuts of given plans alone. Orders are made for devices that are
// `relaxation` better, and tried on those of the request.
absl::StatusOr<int> SearchOrdersFrom(const PlannerRequest& request, CandidateSpace& space,
                                     FoundPlans& plans, absl::Span<const FoundPlan> starts,
                                     int scale, const Relaxation& relaxation = {});

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_ORDER_SEARCH_H_
