#ifndef STAGECOACH_ENGINE_DIAGNOSIS_MERGED_TRACE_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_MERGED_TRACE_H_

#include <string>

#include "absl/types/span.h"
#include "engine/diagnosis/flight_recorder.h"

namespace stagecoach::engine {

// Returns all recorded actions as a file for chrome://tracing and ui.perfetto.dev ("Trace Event
// Format", Google 2016). Each rank is a process with one row: an action from when the rank has
// reached it until its end, within it the time that it has waited, and arrows from sends to the
// readers of their messages. An unfinished action lasts until the end of the trace, and its name
// says so. Unlike a schedule::Trace, it covers many steps and all replicas, and need not be
// complete. `records`: those of all devices, on one clock (AlignClocks).
std::string ToMergedTrace(absl::Span<const RankRecord> records);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_MERGED_TRACE_H_
