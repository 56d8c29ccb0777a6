#ifndef STAGECOACH_TOOLS_CLI_REPLAY_PLANS_H_
#define STAGECOACH_TOOLS_CLI_REPLAY_PLANS_H_

#include "absl/status/statusor.h"
#include "engine/checkpoint/manifest.h"
#include "tools/cli/cli11_fwd.h"
#include "tools/cli/run_options.h"

namespace stagecoach::tools {

// What is trained, and how.
struct OneTime {
  RunOptions options;
  Run run;
};

struct ReplayTimes {
  OneTime first;   // by the plan of the checkpoint
  OneTime second;  // by another plan, as the flags say, or over the fewest devices
};

// What a replay trains, both times with the data, model, batch, optimizer and seed of the
// checkpoint. `given`: what `flags` (AddReplayFlags) have filled. Data are in memory once. Errors
// are marked with their origin: those of MakeRun; FailedPrecondition, as TakeSavedOptions;
// ResourceExhausted, if this machine lacks the memory.
absl::StatusOr<ReplayTimes> PrepareReplay(const CLI::App& flags, const RunOptions& given,
                                          const engine::Manifest& manifest);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_REPLAY_PLANS_H_
