#ifndef STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_CHECKPOINT_H_
#define STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"

namespace stagecoach::tools {

// How many steps a run takes after a checkpoint until its end, by the options that it was saved
// with. FailedPrecondition: it does not have them, since it was not saved by this program.
absl::StatusOr<int64_t> StepsLeft(const engine::Manifest& manifest);

// From where steps are to be replayed.
struct ReplayStart {
  engine::Checkpoint checkpoint;
  int64_t steps = 0;  // as many as are wanted, or those that are left: at least 1
  // Later checkpoints in the same folder, of steps that these reach: by step, whole or not.
  std::vector<engine::FoundCheckpoint> later;
};

// The checkpoint at `path`, or, of the folder of a run, the newest one that is not damaged and from
// which so many steps are left; or else the one from which most are. Those that are damaged are
// passed over with a line each; what is taken from a run's folder has been read and hashed.
// FailedPrecondition: no step is left.
absl::StatusOr<ReplayStart> FindReplayStart(const std::string& path, int64_t steps);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_CHECKPOINT_H_
