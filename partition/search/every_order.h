#ifndef STAGECOACH_PARTITION_SEARCH_EVERY_ORDER_H_
#define STAGECOACH_PARTITION_SEARCH_EVERY_ORDER_H_

#include "absl/status/statusor.h"
#include "partition/search/candidates.h"
#include "partition/search/found_plans.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {

struct EveryOrder {
  int considered = 0;  // orders
  // No plan is faster than this and than the best: the known bound of the combinations that were
  // not searched completely.
  double bound_ns = 0;
};

// Searches all orders of work (schedule/search/best_order.h) in all cuts of the combinations that
// are tiny and have at most kMaxEnumeratedCuts of them, with and without recomputation if memory is
// limited, and adds to `plans` what is better than the best. Bounded by counts, and by the budget.
absl::StatusOr<EveryOrder> SearchEveryOrder(const PlannerRequest& request, CandidateSpace& space,
                                            FoundPlans& plans);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_EVERY_ORDER_H_
