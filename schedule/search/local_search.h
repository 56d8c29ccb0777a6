#ifndef STAGECOACH_SCHEDULE_SEARCH_LOCAL_SEARCH_H_
#define STAGECOACH_SCHEDULE_SEARCH_LOCAL_SEARCH_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "schedule/search/order_problem.h"
#include "schedule/search/order_timer.h"

namespace stagecoach::schedule {

struct LocalSearchOptions {
  int64_t max_moves = 0;
  uint64_t seed = 0;
};

// Tabu search for a better order: moves single passes across the ends of the blocks that make up
// the longest path (as for job shops: Nowicki and Smutnicki 1996, Balas and Vazacopoulos 1998),
// where the order of micro-batches and the stash limits permit. Never returns a worse order than
// `start`, nor, except for `start`, one that `is_acceptable` refuses. Pre-condition: `start`
// completes, in the order of micro-batches and within the limits.
Order ImproveOrder(const OrderProblem& problem, const Order& start,
                   absl::FunctionRef<bool(const Order&)> is_acceptable,
                   const LocalSearchOptions& options);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_LOCAL_SEARCH_H_
