#ifndef STAGECOACH_ENGINE_SESSION_REPLAY_H_
#define STAGECOACH_ENGINE_SESSION_REPLAY_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/session/run_config.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The steps of a run that are trained again.
struct ReplayTask {
  std::string checkpoint;  // from there on
  int64_t steps = 0;
  std::string folder;                // what they come to is saved there
  std::set<int64_t> compared_steps;  // numbers of steps of the run after which it is saved as well
  // After each step, with its number in the run.
  std::function<void(int64_t number, const StepResult& result)> on_step;
  // After each of `compared_steps`. The checkpoint stays until the next one has been saved.
  std::function<void(const Checkpoint&)> on_saved;
};

// Continues a run as one that resumes does, and returns what is saved after the last step.
// Cancelled: RunConfig::wants_stop stopped it.
struct Replayed {
  Checkpoint end;
  std::string parameters_hash;
};
absl::StatusOr<Replayed> Replay(const RunConfig& options, const TrainingRun& run,
                                const ReplayTask& task);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_REPLAY_H_
