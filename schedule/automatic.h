#ifndef STAGECOACH_SCHEDULE_AUTOMATIC_H_
#define STAGECOACH_SCHEDULE_AUTOMATIC_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/costs.h"
#include "schedule/placement.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"
#include "schedule/stash.h"

namespace stagecoach::schedule {

// What the search minimizes; ties are broken by the other.
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
  // What each stage stashes per micro-batch, and what each rank may keep at once, in the same unit
  // (bytes, or whole-device stashes). Index: stage, and rank; an empty limit is none.
  std::vector<StageStash> stash;
  std::vector<double> stash_limit;
  OrderObjective objective = OrderObjective::kSpan;
  Sends sends = Sends::kBuffered;  // by which results are compared; the search itself buffers
  double effort = 1.0;             // what the search may take, as a share of the most; in (0, 1]
};

// Bound of ranks * ranks * micro-batches * chunks.
inline constexpr int64_t kMaxSearched = int64_t{1} << 25;

// Searches for the fastest compute schedule under the limit: list scheduling under a grid of
// policies (zero-bubble paper, Qi et al. 2023, section 3.1), of which the best are refined by what
// each stage has in flight; then tabu search that moves single passes along the longest path.
// Starts from the generated schedules of the same placement that fit, and never returns a slower
// one: compared once lowered. Every backward pass is B and W, or BW where that is shorter or keeps
// less, or what the best generator made it. The result is called "auto", passes Validate once
// lowered, and is within the limit. Deterministic: the search is bounded by counts, not by time.
//
// InvalidArgument: counts, times, sizes or the effort out of range; so many passes on so many ranks
// that the search would take minutes (kMaxSearched). ResourceExhausted: a rank's limit is too small
// for a single micro-batch; names the rank, its need and its limit.
absl::StatusOr<Schedule> Automatic(const AutomaticRequest& request);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_AUTOMATIC_H_
