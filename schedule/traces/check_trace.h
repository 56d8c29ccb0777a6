#ifndef STAGECOACH_SCHEDULE_TRACES_CHECK_TRACE_H_
#define STAGECOACH_SCHEDULE_TRACES_CHECK_TRACE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// No step may take longer (about 104 days), nor all ranks together more than 2^62 ns, so that sums
// of a trace's times cannot overflow.
inline constexpr int64_t kMaxTraceNs = int64_t{1} << 53;

// Checks what every reader of a trace relies on, and what a trace from a file may lack. Returns OK
// if
//  - stages are on ranks of the trace; actions are those of a stage of their rank, with a
//    micro-batch of the trace where their operation has one, and none otherwise;
//  - every action is reached before it starts and starts before it ends (a receive may end before
//    it starts: its message had then arrived before it was posted), all within the step;
//  - on every rank, actions are reached and started in the order of the list;
//  - no size is negative, and no time exceeds its bound.
// Otherwise InvalidArgument, naming rank, place in the list and action.
absl::Status CheckTrace(const Trace& trace);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRACES_CHECK_TRACE_H_
