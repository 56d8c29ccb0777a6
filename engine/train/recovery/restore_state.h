#ifndef STAGECOACH_ENGINE_TRAIN_RECOVERY_RESTORE_STATE_H_
#define STAGECOACH_ENGINE_TRAIN_RECOVERY_RESTORE_STATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/runtime/rank_group.h"
#include "engine/runtime/trained_parameters.h"
#include "engine/train/recovery/state_snapshot.h"

namespace stagecoach::engine {

// Restores and copies StateSnapshot: one device per process.

// Restores each device from what its process has kept, or otherwise from another replica of its
// rank; called by all processes of a group at the same place. Returns the progress, without the
// pieces. Positions may differ by whether the last epoch has been evaluated: the result is that of
// the first process that has one, since the first of all is the one that reports. `own`: null in a
// new process. Aborted: all replicas of a rank are new, or processes have kept different steps.
absl::StatusOr<StateSnapshot> RestoreState(RankGroup& group, Executors executors,
                                           const StateSnapshot* own, absl::Duration deadline);

// Copies the pieces of the device of this process, once it is done with its work. DeadlineExceeded:
// it waits for another.
absl::StatusOr<std::vector<std::vector<std::byte>>> CopyPieces(RankGroup& group,
                                                               Executors executors,
                                                               absl::Duration deadline);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_RECOVERY_RESTORE_STATE_H_
