#ifndef STAGECOACH_ENGINE_SESSION_TRAINING_HOOKS_H_
#define STAGECOACH_ENGINE_SESSION_TRAINING_HOOKS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/comm/launch.h"
#include "engine/session/run_config.h"
#include "engine/session/training_observer.h"

namespace stagecoach::engine {

// What a caller of Train may add to its configuration. All may be null.
struct TrainingHooks {
  TrainingObserver* observer = nullptr;
  // Completes the configuration once it is known whether the run resumes from a checkpoint: null if
  // it begins. `launch`: nullopt for a process alone.
  std::function<absl::Status(const Checkpoint* resumed, const std::optional<Launch>& launch,
                             RunConfig& config)>
      complete;
  // Returns what checkpoints keep of how the run was configured. If it is null, they keep all of
  // the configuration that decides the results, so that the command line can use and resume the
  // run.
  std::function<std::vector<SavedOption>(const RunConfig& config, const TrainingRun& run)>
      options_to_save;
  // Returns how a run that resumes differs from the one that was saved, as a notice says it; "" if
  // its results will be the same. FailedPrecondition: its data are not what they were.
  std::function<absl::StatusOr<std::string>(const Manifest& saved, const RunConfig& config,
                                            const TrainingRun& run)>
      compare;
  // Hears of an error of this process's own configuration, before the others of the run do.
  std::function<void(const absl::Status& error)> on_refused;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_TRAINING_HOOKS_H_
