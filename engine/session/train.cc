// Train, of engine/session/session.h.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/system/file_lock.h"
#include "engine/comm/launch.h"
#include "engine/comm/supervisor.h"
#include "engine/session/initial_run.h"
#include "engine/session/plan_choice.h"
#include "engine/session/process_group.h"
#include "engine/session/saved_run.h"
#include "engine/session/session.h"
#include "engine/session/training_process.h"

namespace stagecoach::engine {
namespace {

// Returns whether the run resumes from a checkpoint. The configuration is complete then.
absl::StatusOr<bool> Complete(const TrainingHooks& hooks, const std::optional<Launch>& launch,
                              RunConfig& config) {
  const bool is_replacement = launch.has_value() && launch->is_replacement;
  ASSIGN_OR_RETURN(const std::optional<Checkpoint> newest, FindResumePoint(config, is_replacement));
  if (hooks.complete != nullptr) {
    RETURN_IF_ERROR(hooks.complete(newest.has_value() ? &*newest : nullptr, launch, config));
  } else if (!newest.has_value()) {
    const bool is_silent = launch.has_value() && launch->rank > 0;
    RETURN_IF_ERROR(TakeInitialRun(config, is_silent));
    ASSIGN_OR_RETURN(const std::string tokenizer, FindFolderTokenizer(config, is_silent));
    if (!tokenizer.empty()) config.tokenizer = tokenizer;
  }
  return newest.has_value();
}

}  // namespace

absl::StatusOr<TrainingOutcome> Train(RunConfig config, const TrainingHooks& hooks) {
  ASSIGN_OR_RETURN(const std::optional<Launch> launch, FindLaunch());
  config.takes_fingerprint =
      launch.has_value() || !config.checkpoints.empty() || !config.runs.empty();
  absl::StatusOr<std::optional<base::FileLock>> lock = std::nullopt;
  // First, so that what is found does not change.
  if (!launch.has_value() || launch->rank == 0) {
    lock = LockCheckpoints(config.checkpoints, config.notices);
  }
  const absl::StatusOr<bool> resumes = lock.ok() ? Complete(hooks, launch, config) : lock.status();
  const std::unique_ptr<Supervisor> supervisor = Supervisor::Find();
  TrainingProcess process(hooks, resumes.ok() && *resumes,
                          lock.ok() ? *std::move(lock) : std::nullopt, supervisor.get());
  if (!launch.has_value()) {
    RETURN_IF_ERROR(resumes.status());
    ASSIGN_OR_RETURN(const std::vector<int> left, FindDevicesLeft());
    RETURN_IF_ERROR(KeepDevicesLeft(left, config));
    if (!left.empty() && config.cluster.has_value()) config.devices_left = config.cluster->size();
    return process.Train(config, {});
  }
  absl::StatusOr<TrainingOutcome> outcome = absl::UnknownError("");
  RETURN_IF_ERROR(RunAsRank(
      *launch, config, resumes.ok() ? CheckPlanFlags(config) : resumes.status(), hooks.on_refused,
      [&](const RunConfig& own, const ProcessGroup& group) {
        outcome = process.Train(own, group);
        return outcome.status();
      },
      supervisor.get()));
  return outcome;
}

}  // namespace stagecoach::engine
