#ifndef STAGECOACH_ENGINE_DIAGNOSIS_HANG_REPORT_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_HANG_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/diagnosis/flight_recorder.h"

namespace stagecoach::engine {

// A run that makes no progress, though all its processes are alive.
struct HangReport {
  int device = 0;     // the one that holds up the others
  std::string place;  // "in the forward pass of micro-batch 3 in step 57"
  absl::Duration since;
};

// Finds a hang. `records`: those of all devices of a run, by number, at `now_ns` of the clock that
// they share. A run hangs if no rank has reached, started or ended an action for at least
// `patience`, and for four times as long as any recorded one has taken once it could start, and if
// the rank that FindFirstStalledRank names is in the middle of an action, and has done one of that
// kind before. So there is no hang while a rank is between two steps, where it may save, nor once
// one has failed or ended, which the others notice by themselves.
std::optional<HangReport> FindHang(absl::Span<const RankRecord> records, int64_t now_ns,
                                   absl::Duration patience);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_HANG_REPORT_H_
