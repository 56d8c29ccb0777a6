#ifndef STAGECOACH_SCHEDULE_TRACES_TRACE_STASH_H_
#define STAGECOACH_SCHEDULE_TRACES_TRACE_STASH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "schedule/memory/stash.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// The stash that a rank keeps from its forward passes for its backward ones, over the time of a
// step.
struct RankStash {
  struct Level {
    int64_t from_ns = 0;  // until the next level begins
    double amount = 0.0;
  };

  // Ascending in time, no two at one time, each with another amount; 0 before the first.
  std::vector<Level> levels;
  double peak = 0.0;    // also if it lasted for no time
  int64_t peak_ns = 0;  // when it was first reached
};

// The stash of all ranks. A pass keeps what it adds from its start, and releases what it no longer
// needs at its end.
struct TraceStash {
  bool in_bytes = false;         // otherwise in the unit of `unit_stash`
  std::vector<RankStash> ranks;  // index: rank; empty if nothing is kept, or it is unknown
};

// Returns the stash in bytes if the trace has sizes, and otherwise that of stages that keep
// `unit_stash` (index: stage), unless that is empty. Pre-condition: the trace passes CheckTrace.
TraceStash StashOf(const Trace& trace, absl::Span<const StageStash> unit_stash);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRACES_TRACE_STASH_H_
