#include "engine/session/replay.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/session/training.h"
#include "engine/train/fit.h"

namespace stagecoach::engine {
namespace {

// Takes the checkpoints that are saved, in order, so that the last one has the result of all steps.
class SavedSteps {
 public:
  explicit SavedSteps(const ReplayTask& task) : task_(task) {}

  void Take(const SaveReport& save) {
    if (!status_.ok()) return;
    absl::StatusOr<Checkpoint> opened = Open(save);
    status_ = opened.status();
    if (!opened.ok()) return;
    last_.emplace(*std::move(opened));
    if (task_.compared_steps.contains(save.step)) task_.on_saved(*last_);
  }

  absl::StatusOr<Checkpoint> TakeLast() {
    RETURN_IF_ERROR(status_);
    STAGECOACH_CHECK(last_.has_value(), "Fit saves a run that it is told to stop");
    return *std::move(last_);
  }

 private:
  static absl::StatusOr<Checkpoint> Open(const SaveReport& save) {
    RETURN_IF_ERROR(save.path.status());
    return Checkpoint::Open(*save.path);
  }

  const ReplayTask& task_;
  std::optional<Checkpoint> last_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Replayed> Replay(const RunConfig& options, const TrainingRun& run,
                                const ReplayTask& task) {
  const auto is_stopped = [&] {
    return options.wants_stop != nullptr && options.wants_stop() != 0;
  };
  RETURN_IF_ERROR(base::MakeFolders(task.folder));
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   MakeTrainer(options, run, {}, {.is_drawn = false}));
  ASSIGN_OR_RETURN(const RestoredCheckpoint restored, trainer->Restore(task.checkpoint));
  const int64_t end = trainer->steps() + task.steps;
  SavedSteps saved(task);
  FitOptions fit = {.epochs = options.epochs, .steps = options.steps, .seed = options.seed};
  fit.start = restored.manifest.position;
  fit.checkpoints.folder = task.folder;
  fit.checkpoints.wanted = [&] { return task.compared_steps.contains(trainer->steps()); };
  fit.checkpoints.save.retention = {.newest = 1, .best_by = ""};
  fit.checkpoints.on_save = [&](const SaveReport& save) { saved.Take(save); };
  fit.stop = [&] { return trainer->steps() >= end || is_stopped(); };
  fit.on_step = [&](const FitProgress& progress) {
    task.on_step(trainer->steps(), progress.step_result);
  };
  RETURN_IF_ERROR(Fit(*trainer, run.data, fit).status());
  if (trainer->steps() < end) {
    if (is_stopped()) return absl::CancelledError("stopped by a signal");
    // There may be fewer data than there were.
    return absl::FailedPreconditionError(
        absl::StrCat("the run ends after step ", trainer->steps(), ", not ", end));
  }
  ASSIGN_OR_RETURN(Checkpoint last, saved.TakeLast());
  ASSIGN_OR_RETURN(std::string hash, trainer->ParametersHash());
  return Replayed{std::move(last), std::move(hash)};
}

}  // namespace stagecoach::engine
