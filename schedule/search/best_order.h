#ifndef STAGECOACH_SCHEDULE_SEARCH_BEST_ORDER_H_
#define STAGECOACH_SCHEDULE_SEARCH_BEST_ORDER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "schedule/ir/schedule.h"
#include "schedule/search/automatic.h"

namespace stagecoach::schedule {

// Limits within which all orders can be searched: ranks, micro-batches, and passes (F, B and W) on
// each rank.
inline constexpr int kMaxTinyRanks = 4;
inline constexpr int kMaxTinyMicroBatches = 4;
inline constexpr int kMaxTinyPasses = 12;

inline bool IsTiny(int ranks, int micro_batches, int chunks) {
  return ranks <= kMaxTinyRanks && micro_batches <= kMaxTinyMicroBatches &&
         chunks <= kMaxTinyPasses / (3 * micro_batches);
}

// The memory that a stage takes on its rank in addition to its stash, in the same unit.
struct PassNeeds {
  // While it performs F, B or BW.
  double forward = 0.0;
  double backward = 0.0;
  double fused = 0.0;
  // The last message sent, from the end of the stage's first F, or its first B or BW, to the end.
  double sent_forward = 0.0;
  double sent_backward = 0.0;
};

// Limits of a search for the best order.
struct BestOrderLimits {
  int64_t below_ns = std::numeric_limits<int64_t>::max();  // only faster orders are of interest
  int64_t nodes = 100'000;  // of the trees: one pass each; judging an order counts as dozens
  std::function<bool()> is_cut_short = {};  // asked now and then; empty: never
};

struct BestOrder {
  // The best order and its time as judged, if it is faster than required.
  std::optional<Schedule> schedule;
  int64_t step_ns = 0;
  // No order is faster than this, nor than the requirement. If the search was complete, this is the
  // best order's time.
  int64_t bound_ns = 0;
  int64_t nodes = 0;  // number that it took
};

// Returns how long the order takes, performed as it will be; nothing if the order is not allowed.
using OrderJudge = absl::FunctionRef<std::optional<int64_t>(const Schedule&)>;

// Finds the best of all compute schedules of the request, by the step, in which every stage takes
// its micro-batches in order, with B and W apart or as BW for each of them. Branch and bound
// (Lawler and Wood 1966), one pass at a time, of the rank that is free first.
//  - Times of unfinished orders are those of buffered sends, plus what is known of the request's
//    own: a lane takes one message at a time, and blocking sends take their ranks' time. Nothing is
//    performed sooner in reality. The remaining work is bounded by each rank's passes alone, with
//    their heads and tails (Carlier 1982).
//  - At first, of two unfinished orders with the same passes done, one that is nowhere later rules
//    out the other. That finds the best of those times, and the orders that have it are judged. If
//    no judged order is that fast, a second tree judges all orders that may be faster than the
//    best.
// `request.stash_limit` is what a rank may take at any time, including `needs` (index: stage; empty
// for none) in addition to the stash; `judge` decides everything else. It may refuse an order, but
// must not call it faster than buffered sends make it. Deterministic. Pre-condition: IsTiny; costs,
// stash and limits are as Automatic requires.
BestOrder FindBestOrder(const AutomaticRequest& request, absl::Span<const PassNeeds> needs,
                        const BestOrderLimits& limits, OrderJudge judge);

// Returns a time that no order can beat: the bound with which FindBestOrder begins.
int64_t OrderBoundNs(const AutomaticRequest& request);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_BEST_ORDER_H_
