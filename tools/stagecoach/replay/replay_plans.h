#ifndef STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_PLANS_H_
#define STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_PLANS_H_

#include "absl/status/statusor.h"
#include "engine/checkpoint/manifest.h"
#include "engine/session/run_config.h"
#include "tools/stagecoach/flags/cli11_fwd.h"

namespace stagecoach::tools {

// What is trained, and how.
struct OneTime {
  engine::RunConfig options;
  engine::TrainingRun run;
};

struct ReplayTimes {
  OneTime first;   // by the plan of the checkpoint
  OneTime second;  // by another plan, as the flags say, or over the fewest devices
};

// What a replay trains, both times with the data, model, batch, optimizer and seed of the
// checkpoint. `given`: what `flags` (AddReplayFlags) have filled. Data are in memory once. Errors:
// those of MakeRun; FailedPrecondition, as TakeSavedOptions; ResourceExhausted, if this machine
// lacks the memory.
absl::StatusOr<ReplayTimes> PrepareReplay(const CLI::App& flags, const engine::RunConfig& given,
                                          const engine::Manifest& manifest);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_PLANS_H_
