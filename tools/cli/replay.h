#ifndef STAGECOACH_TOOLS_CLI_REPLAY_H_
#define STAGECOACH_TOOLS_CLI_REPLAY_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/train/trainer.h"
#include "tools/cli/run_options.h"

namespace stagecoach::tools {

// Steps of a run that are trained again.
struct ReplayTask {
  std::string checkpoint;  // from there on
  int64_t steps = 0;
  std::string folder;                // what they come to is saved there
  std::set<int64_t> compared_steps;  // numbers of steps of the run after which it is saved as well
  // After each step, with its number in the run.
  std::function<void(int64_t number, const engine::StepResult& result)> on_step;
  // After each of `compared_steps`. The checkpoint stays until the next one has been saved.
  std::function<void(const engine::Checkpoint&)> on_saved;
};

// Goes on as `train --resume` does, and returns what is saved after the last step. Errors are
// marked with their origin. Cancelled: a signal has stopped it (stop_signal.h).
struct Replayed {
  engine::Checkpoint end;
  std::string parameters_hash;
};
absl::StatusOr<Replayed> Replay(const RunOptions& options, const Run& run, const ReplayTask& task);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_REPLAY_H_
