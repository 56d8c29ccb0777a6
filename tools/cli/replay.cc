#include "tools/cli/replay.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "engine/train/fit.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/stop_signal.h"
#include "tools/cli/training.h"

namespace stagecoach::tools {
namespace {

// What of the steps is saved: in order, so that the last one is what they come to.
class SavedSteps {
 public:
  explicit SavedSteps(const ReplayTask& task) : task_(task) {}

  void Take(const engine::SaveReport& save) {
    if (!status_.ok()) return;
    absl::StatusOr<engine::Checkpoint> opened = Open(save);
    status_ = opened.status();
    if (!opened.ok()) return;
    last_.emplace(*std::move(opened));
    if (task_.compared_steps.contains(save.step)) task_.on_saved(*last_);
  }

  absl::StatusOr<engine::Checkpoint> TakeLast() {
    RETURN_IF_ERROR(status_);
    STAGECOACH_CHECK(last_.has_value(), "Fit saves a run that it is told to stop");
    return *std::move(last_);
  }

 private:
  static absl::StatusOr<engine::Checkpoint> Open(const engine::SaveReport& save) {
    RETURN_IF_ERROR(save.path.status());
    return engine::Checkpoint::Open(*save.path);
  }

  const ReplayTask& task_;
  std::optional<engine::Checkpoint> last_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Replayed> Replay(const RunOptions& options, const Run& run, const ReplayTask& task) {
  RETURN_IF_ERROR(From(Origin::kOutput, base::MakeFolders(task.folder)));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<engine::Trainer> trainer,
      From(Origin::kConfiguration, MakeTrainer(options, run, {}, {.is_drawn = false})));
  ASSIGN_OR_RETURN(const engine::RestoredCheckpoint restored,
                   From(Origin::kData, trainer->Restore(task.checkpoint)));
  const int64_t end = trainer->steps() + task.steps;
  SavedSteps saved(task);
  RETURN_IF_ERROR(
      Fit(*trainer, run.data,
          {.epochs = options.epochs,
           .steps = options.steps,
           .seed = options.seed,
           .start = restored.manifest.position,
           .checkpoints = {.folder = task.folder,
                           .wanted = [&] { return task.compared_steps.contains(trainer->steps()); },
                           .save = {.retention = {.newest = 1, .best = false}},
                           .on_save = [&](const engine::SaveReport& save) { saved.Take(save); }},
           .stop = [&] { return trainer->steps() >= end || StopRequested(); },
           .on_step =
               [&](const engine::FitProgress& progress) {
                 task.on_step(trainer->steps(), progress.taken);
               }})
          .status());
  if (trainer->steps() < end) {
    // The data may be fewer than they were.
    if (StopRequested()) return absl::CancelledError("stopped by a signal");
    return From(Origin::kConfiguration,
                absl::FailedPreconditionError(
                    absl::StrCat("the run ends after step ", trainer->steps(), ", not ", end)));
  }
  ASSIGN_OR_RETURN(engine::Checkpoint last, From(Origin::kOutput, saved.TakeLast()));
  ASSIGN_OR_RETURN(std::string hash, trainer->ParametersHash());
  return Replayed{std::move(last), std::move(hash)};
}

}  // namespace stagecoach::tools
