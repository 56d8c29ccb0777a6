#ifndef STAGECOACH_SCHEDULE_TRACES_TRACE_H_
#define STAGECOACH_SCHEDULE_TRACES_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// When one action was performed. Times count from the start of the step, on one clock for all
// ranks.
//
// A rank reaches an action, waits until it can start (its inputs are there; the previous send on
// its lane was taken), and starts it:
//   compute, STEP  occupy the rank from start to end;
//   REDUCE         starts the sum at start; end is when the sum was complete;
//   collective     starts when all ranks of its group have reached it; all wait until end;
//   receive        posted at start; end is when the message had arrived;
//   send           posted at start; end is when the message had been taken;
//   OFFLOAD, FETCH posted at start; end is when the copy was made;
//   RELEASE        at start, the copy was made.
// The time between the end of one action and reaching the next is the executor's own, 0 in a
// simulation (where a blocking send occupies its rank until its end).
struct TimedAction {
  Action action;
  int64_t reached_ns = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  // Transfer: the message's bytes. OFFLOAD, FETCH: those copied. Compute action: what the rank has
  // stashed after it. 0 if unknown.
  int64_t bytes = 0;
  // Compute action: the most that the rank has stashed until its end. A B adds what it keeps for W
  // before it releases what it has read. 0 if unknown.
  int64_t peak_stash_bytes = 0;
  // Compute action on an accelerator: it was launched as a graph, with one call.
  bool as_graph = false;

  friend bool operator==(const TimedAction&, const TimedAction&) = default;
};

// One run of a schedule, simulated or measured: for each rank its list of actions with their times.
struct Trace {
  std::string name;    // of the schedule
  std::string source;  // "simulated" or "measured"
  int num_micro_batches = 0;
  std::vector<Rank> rank_of_stage;                // index: stage
  std::vector<std::vector<TimedAction>> actions;  // index: rank; as in the schedule
  int64_t step_ns = 0;  // from 0 until the last rank has reached the end of its list

  int num_ranks() const { return static_cast<int>(actions.size()); }
  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  const std::vector<TimedAction>& list_of(Rank rank) const {
    return actions[static_cast<size_t>(rank.value())];
  }

  friend bool operator==(const Trace&, const Trace&) = default;
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRACES_TRACE_H_
