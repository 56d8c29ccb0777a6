#ifndef STAGECOACH_ENGINE_DIAGNOSIS_STANDSTILL_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_STANDSTILL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/diagnosis/action_ring.h"

namespace stagecoach::engine {

// A run that does not come on, though all its processes live.
struct Standstill {
  int device = 0;     // that holds up the others
  std::string place;  // "in the forward pass of micro-batch 3 in step 57"
  absl::Duration since;
};

// `records`: those of all devices of a run, by number, at `now_ns` of the clock that they share. It
// stands still if no rank has come to an action, started or ended one for at least `patience`, and
// for four times as long as any that is recorded has taken once it could start, in the middle of an
// action of the one that FindFirstStop names, which has done one of that kind before. So not while
// a rank is between two steps, where it may save, nor once one has failed or ended, of which the
// others hear by themselves.
std::optional<Standstill> FindStandstill(absl::Span<const RankRecord> records, int64_t now_ns,
                                         absl::Duration patience);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_STANDSTILL_H_
