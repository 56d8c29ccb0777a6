#ifndef STAGECOACH_SCHEDULE_SEARCH_POLICY_SEARCH_H_
#define STAGECOACH_SCHEDULE_SEARCH_POLICY_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "schedule/search/order_problem.h"

namespace stagecoach::schedule {

struct ScoredOrder {
  Score score;
  Order order;
};

// Runs the list scheduler under a grid of policies, then improves the best ones by changing how
// many micro-batches one stage, all from one on, or all up to one may have in flight: at most
// `max_runs` runs, the first with one micro-batch in flight. Returns the best `max_orders` that are
// acceptable, best first, one per score. All complete in the order of micro-batches and within the
// limits. Pre-condition: a single micro-batch is within the limits.
std::vector<ScoredOrder> SearchPolicies(const OrderProblem& problem, int64_t max_runs,
                                        size_t max_orders,
                                        absl::FunctionRef<bool(const Order&)> is_acceptable);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_POLICY_SEARCH_H_
