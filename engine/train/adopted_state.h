#ifndef STAGECOACH_ENGINE_TRAIN_ADOPTED_STATE_H_
#define STAGECOACH_ENGINE_TRAIN_ADOPTED_STATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/run/rank_group.h"
#include "engine/train/kept_state.h"
#include "engine/train/trained_parameters.h"

namespace stagecoach::engine {

// Where KeptState comes from and goes to: one device, with host memory, per process.

// By all processes of a group at the same place: gives each device what its process has kept, or
// else another replica of its rank. Returns how far that is, without the pieces. Positions may
// differ by whether the last epoch has been evaluated: it is that of the first process that has
// one, the first of all being the one that reports.
// `own`: null in a process that is new. Aborted: all replicas of a rank are new, or processes have
// kept different steps. The group's devices have host memory.
absl::StatusOr<KeptState> AdoptState(RankGroup& group, Executors executors, const KeptState* own,
                                     absl::Duration deadline);

// Copies the pieces of the device of this process.
absl::StatusOr<std::vector<std::vector<float>>> CopyPieces(RankGroup& group, Executors executors);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_ADOPTED_STATE_H_
