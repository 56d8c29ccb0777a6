#ifndef STAGECOACH_SCHEDULE_SEARCH_AUTOMATIC_H_
#define STAGECOACH_SCHEDULE_SEARCH_AUTOMATIC_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/ir/placement.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/stash.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"

namespace stagecoach::schedule {

// The objective that the search minimizes; the other one breaks ties.
enum class OrderObjective : uint8_t {
  kSpan,  // the longest span of a rank: consecutive steps overlap
  kStep,  // until the last rank is done: each step waits for the one before it
};

struct AutomaticRequest {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 1;                          // stages per rank
  Placement placement = Placement::kLoop;  // kV needs 2 chunks
  Costs costs;                             // of ranks * chunks stages, which may all differ
  // The stash of each stage per micro-batch, and how much each rank may keep at once, in the same
  // unit (bytes, or whole-device stashes). Index: stage, and rank; an empty limit means no limit.
  std::vector<StageStash> stash;
  std::vector<double> stash_limit;
  OrderObjective objective = OrderObjective::kSpan;
  Sends sends = Sends::kBuffered;  // decides how results are compared; the search itself buffers
  double effort = 1.0;             // share of the largest search that may be spent; in (0, 1]
};

// Largest ranks * ranks * micro-batches * chunks.
inline constexpr int64_t kMaxSearched = int64_t{1} << 25;

// Searches for the fastest compute schedule under the limit: list scheduling under a grid of
// policies (zero-bubble paper, Qi et al. 2023, section 3.1), the best of which are refined by the
// number of micro-batches that each stage has in flight; then tabu search that moves single passes
// along the longest path. Starts from the generated schedules of the same placement that fit, and
// never returns a slower one: they are compared once lowered. Every backward pass is B and W, or BW
// where that is shorter or keeps less, or whatever the best generator made it. The result is called
// "auto", passes Validate once lowered, and is within the limit. Deterministic: counts bound the
// search, not time.
//
// InvalidArgument: counts, times, sizes or the effort out of range; too many passes on too many
// ranks for a search within minutes (kMaxSearched). ResourceExhausted: a rank's limit is too small
// for a single micro-batch; names the rank, its need and its limit.
absl::StatusOr<Schedule> Automatic(const AutomaticRequest& request);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_AUTOMATIC_H_
