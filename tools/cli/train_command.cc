#include "tools/cli/train_command.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/launch/launch.h"
#include "engine/launch/supervisor.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/launched.h"
#include "tools/cli/messages.h"
#include "tools/cli/run_options.h"
#include "tools/cli/saved_run.h"
#include "tools/cli/training_process.h"

namespace stagecoach::tools {
namespace {

// Whether there is a checkpoint to go on from, whose options `options` then has, which are those
// that `flags` fill. `is_replacement`: of a process, which gets what it goes on from elsewhere.
absl::StatusOr<bool> FindCheckpoint(CLI::App& flags, bool is_replacement, RunOptions& options) {
  if (options.checkpoints.empty()) return false;
  if (base::Exists(absl::StrCat(options.checkpoints, "/", engine::kManifestName))) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(absl::StrCat(
                    "--checkpoint: ", options.checkpoints,
                    " is one of the checkpoints of a run: name the folder that it is in")));
  }
  if (!options.resume) {
    if (is_replacement) return false;
    ASSIGN_OR_RETURN(const std::vector<engine::FoundCheckpoint> found,
                     From(Origin::kOutput, engine::ListCheckpoints(options.checkpoints)));
    if (found.empty()) return false;
    return From(Origin::kConfiguration, absl::AlreadyExistsError(absl::StrCat(
                                            options.checkpoints,
                                            " has checkpoints of a run: --resume goes on with it; "
                                            "for another run, name another folder")));
  }
  std::vector<absl::Status> passed_over;  // Restore finds them again, and they are reported then
  const absl::StatusOr<engine::Checkpoint> newest =
      engine::OpenNewest(options.checkpoints, passed_over);
  if (absl::IsNotFound(newest.status()) && passed_over.empty()) {
    if (!is_replacement) {
      PrintNotice(absl::StrCat("there is no checkpoint in ", options.checkpoints,
                               " yet: the run starts at its beginning"));
    }
    return false;
  }
  RETURN_IF_ERROR(From(Origin::kData,
                       newest.ok() || passed_over.empty() ? newest.status() : passed_over.front()));
  RETURN_IF_ERROR(
      From(Origin::kConfiguration, TakeSavedOptions(flags, newest->manifest(), options)));
  return true;
}

absl::StatusOr<int> Train(CLI::App& flags, RunOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<engine::Launch> launch,
                   From(Origin::kUsage, engine::FindLaunch()));
  const absl::StatusOr<bool> resumes =
      FindCheckpoint(flags, launch.has_value() && launch->is_replacement, options);
  const std::unique_ptr<engine::Supervisor> supervisor = engine::Supervisor::Find();
  TrainingProcess process(flags, resumes.ok() && *resumes, supervisor.get());
  if (launch.has_value()) {
    const absl::Status so_far = resumes.ok() ? CheckPlanFlags(options) : resumes.status();
    return WorkAsRank(
        "train", *launch, options, so_far,
        [&](const RunOptions& own, const Meeting& meeting) { return process.Train(own, meeting); },
        supervisor.get());
  }
  RETURN_IF_ERROR(resumes.status());
  return process.Train(options, {});
}

}  // namespace

Command AddTrainCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("train", "Train a model that is spread over devices");
  const auto options = std::make_shared<RunOptions>();
  AddPlanFlags(*flags, *options);
  AddTrainingFlags(*flags, *options);
  return {flags, [flags, options] { return Train(*flags, *options); }};
}

}  // namespace stagecoach::tools
