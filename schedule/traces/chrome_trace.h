#ifndef STAGECOACH_SCHEDULE_TRACES_CHROME_TRACE_H_
#define STAGECOACH_SCHEDULE_TRACES_CHROME_TRACE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// Traces as files, in the Trace Event Format that chrome://tracing and ui.perfetto.dev open ("Trace
// Event Format", Google 2016), readable without loss:
//   {"displayTimeUnit": "ms",
//    "otherData": {"format": "stagecoach-trace", "version": 1, "name", "source", "micro_batches",
//                  "rank_of_stage": [...], "actions_per_rank": [...], "step_ns"},
//    "traceEvents": [...]}
// Each rank is a process, with a thread for what occupies it, and threads for what it sends and
// receives: as many as there are messages under way at once. Every action is one slice ("ph": "X")
// with "args": {"op", "stage", "micro_batch", "overlaps_next", "reached_ns", "start_ns", "end_ns",
// "bytes", "peak_stash_bytes"}, without micro_batch where the operation has none, with "group" in
// place of "stage" for a collective, without overlaps_next unless true and without peak_stash_bytes
// unless known; arrows lead from sends to receives. Only otherData and pid and args of the slices
// are read back: ts and dur (us), names, colors and arrows are for the viewer, which sees transfers
// one ns longer than they are, since an arrow needs a slice of some length at either end.

// Largest size of a trace as a file: about a million actions.
inline constexpr int64_t kMaxTraceBytes = int64_t{256} << 20;

// Writes a trace as JSON. Bytes of a name that are not UTF-8 are replaced. Pre-condition: the trace
// passes CheckTrace (check_trace.h).
std::string ToChromeTrace(const Trace& trace);

// Parses what ToChromeTrace writes; the result passes CheckTrace. InvalidArgument, with line and
// column or the path of the value, for anything else; ResourceExhausted for a text above
// kMaxTraceBytes. Safe on hostile input.
absl::StatusOr<Trace> ParseChromeTrace(absl::string_view text);

// Writes the file. InvalidArgument if CheckTrace refuses the trace, ResourceExhausted if it would
// take more than kMaxTraceBytes; otherwise errors of base/system/file.h.
absl::Status WriteTrace(const Trace& trace, const std::string& path);

// Reads the file. Errors are those of ParseChromeTrace, prefixed with the path, and of
// base/system/file.h.
absl::StatusOr<Trace> ReadTrace(const std::string& path);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRACES_CHROME_TRACE_H_
