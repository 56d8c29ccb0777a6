#ifndef STAGECOACH_ENGINE_DIAGNOSIS_MERGED_TRACE_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_MERGED_TRACE_H_

#include <string>

#include "absl/types/span.h"
#include "engine/diagnosis/action_ring.h"

namespace stagecoach::engine {

// All recorded actions as a file that chrome://tracing and ui.perfetto.dev open ("Trace Event
// Format", Google 2016). Each rank is a process with one row: an action from when the rank has come
// to it until its end, within it how long it has waited, and arrows from sends to what reads their
// messages. What a rank has not finished lasts until the end of the picture, and its name says so.
// Unlike a schedule::Trace, it is of many steps, of all replicas, and need not be complete.
// `records`: of all devices, on one clock (AlignClocks).
std::string ToMergedTrace(absl::Span<const RankRecord> records);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_MERGED_TRACE_H_
