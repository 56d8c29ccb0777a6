#ifndef STAGECOACH_ENGINE_RUNTIME_GATHERED_VALUES_H_
#define STAGECOACH_ENGINE_RUNTIME_GATHERED_VALUES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/runtime/rank_group.h"

namespace stagecoach::engine {

// Values that one process of a run has.
struct ValueShare {
  int owner = 0;  // its rank; each process has at most one share
  int64_t count = 0;
};

// Returns the values of all shares, one after the other, on every process: all must call it with
// the same shares, and each with its `own` values, none if it owns no share. They travel through
// the rendezvous, in parts. FailedPrecondition: a process has another number of values.
absl::StatusOr<std::vector<float>> GatherValues(RankGroup& group, absl::Span<const float> own,
                                                absl::Span<const ValueShare> shares);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_GATHERED_VALUES_H_
