#ifndef STAGECOACH_SCHEDULE_TRACES_TRACE_PARTS_H_
#define STAGECOACH_SCHEDULE_TRACES_TRACE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// Parts that the pictures of a trace and the comparison of two share. Pre-condition of all
// functions that take a trace: it passes CheckTrace.

// A send and the receive that took its message, as places in the lists of their ranks.
struct Delivery {
  Rank from;
  size_t send = 0;
  Rank to;
  size_t receive = 0;
};

// Returns the deliveries in the order of the senders' lists. A send or receive without the other is
// left out.
std::vector<Delivery> DeliveriesOf(const Trace& trace);

// Returns which of its rank's stages each stage is, counted from the input: its "chunk". Index:
// stage.
std::vector<int> ChunkOfStage(const Trace& trace);
// Returns the chunk of an action's stage; 0 for a collective. `chunks`: ChunkOfStage.
int ChunkOf(const Action& action, const std::vector<int>& chunks);

// The part of its row that a slice takes. Actions performed together share the row.
enum class Track : uint8_t { kWhole, kUpper, kLower };

// An action that occupies a rank for some time.
struct Slice {
  TimedAction timed;
  Track track = Track::kWhole;
};

// Returns everything in the rank's list that took time, except transfers, in the order of the list.
std::vector<Slice> SlicesOf(const std::vector<TimedAction>& list);

// A copy between the device's memory and the host's, while it is made: copies of one direction run
// one after the other, whenever they were posted.
struct CopySpan {
  size_t action = 0;  // position of the OFFLOAD or FETCH
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};
// Returns those of a rank's list, in its order.
std::vector<CopySpan> CopiesOf(const std::vector<TimedAction>& list);

// One unit for all times of a picture or table.
struct TimeUnit {
  const char* name = "ms";
  int64_t ns = 1'000'000;
};

// Returns the largest of ns, us, ms and s of which a step of that length has at least 10; else ns.
TimeUnit UnitFor(int64_t step_ns);

// Returns the smallest of 1, 2, 5, 10, 20, 50, ... that is at least `at_least_ns`: a distance
// between marks on a time axis.
int64_t NiceIntervalNs(int64_t at_least_ns);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRACES_TRACE_PARTS_H_
