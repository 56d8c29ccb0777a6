#ifndef STAGECOACH_TOOLS_STAGECOACH_SIMULATE_TIMES_FILE_H_
#define STAGECOACH_TOOLS_STAGECOACH_SIMULATE_TIMES_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::tools {

// Rounds to the nearest ns.
int64_t Nanoseconds(double ms);

// Reads what `simulate --times` takes: JSON, all times in milliseconds,
//   {"stages": [{"forward_ms": 9.2, "backward_ms": 9.0, "weight_ms": 4.6}, ...],
//    "latency_ms": 0.6}
// with one entry per stage, from the input of the network on. Times are per micro-batch; `backward`
// is the gradient of the input, `weight` that of the parameters. Optional, per stage: "fused_ms"
// (both as one operation; default: their sum), "reduce_ms" and "step_ms" (once per step),
// "output_bytes" (of the activation, and of its gradient on the way back), and for peaks in bytes
// "resident_bytes", "stash_bytes" (kept from F until B) and "weight_stash_bytes" (from F until W).
// Optional besides "stages": "latency_ms" and "bytes_per_second" of every link, "overlap" (duration
// of an overlapped forward and backward pass as a share of their sum).
//
// Errors of base/system/file.h and base/text/json.h: InvalidArgument, with path and place, for
// anything else.
absl::StatusOr<schedule::Costs> ReadTimesFile(const std::string& path);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_SIMULATE_TIMES_FILE_H_
