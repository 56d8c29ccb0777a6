#include "tools/cli/train_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/file_lock.h"
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

bool IsOnCommandLine(const CLI::App& flags, const char* name) {
  return flags.get_option(name)->count() > 0;
}

// Where a run that is to go on finds no checkpoint: OK if it may be its first start, as scripts and
// launchers have it, which always say --resume. If nothing says what to train, the folder is the
// wrong one.
absl::Status CheckMayStart(const CLI::App& flags, const std::string& folder, bool is_restart) {
  const std::vector<std::string> near = CheckpointFoldersNear(folder);
  constexpr std::ptrdiff_t kMostNamed = 5;
  const std::ptrdiff_t named = std::min<std::ptrdiff_t>(std::ssize(near), kMostNamed);
  const std::string others =
      near.empty() ? ""
                   : absl::StrCat("; there are some in ",
                                  absl::StrJoin(near.begin(), near.begin() + named, ", "),
                                  std::ssize(near) > named ? ", ..." : "");
  constexpr const char* kSayWhat[] = {"--data",   "--model", "--init",
                                      "--layers", "--width", "--plan"};
  const bool says_what =
      std::any_of(std::begin(kSayWhat), std::end(kSayWhat),
                  [&](const char* name) { return IsOnCommandLine(flags, name); });
  if (says_what || is_restart) {
    PrintNotice(absl::StrCat("there is no checkpoint in ", folder,
                             " yet: the run starts at its beginning", others));
    return absl::OkStatus();
  }
  return From(Origin::kData, absl::NotFoundError(absl::StrCat(
                                 "--resume: there is no checkpoint in ", folder, others,
                                 "; for a new run, say what to train (--data, "
                                 "--model)")));
}

// `has_epochs` and `has_steps`: whether the command line says them, rather than the checkpoint.
absl::Status CheckHasMoreToTrain(const engine::Manifest& manifest, bool has_epochs, bool has_steps,
                                 const RunOptions& options) {
  const auto refuse = [](const std::string& had, const char* flag) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(absl::StrCat("nothing to train: the run has had ", had,
                                                        "; ", flag, " counts from the start")));
  };
  if (has_steps && manifest.step > *options.steps) {
    return refuse(absl::StrCat(manifest.step, " steps"), "--steps");
  }
  const int epochs = manifest.position.epoch - 1;
  const bool has_part = manifest.position.rows > 0;
  if (has_epochs && (epochs > options.epochs || (epochs == options.epochs && has_part))) {
    return refuse(absl::StrCat(epochs, epochs == 1 ? " epoch" : " epochs",
                               has_part ? " and a part of the next" : ""),
                  "--epochs");
  }
  return absl::OkStatus();
}

// Whether there is a checkpoint to go on from, whose options `options` then has, which are those
// that `flags` fill. `launch`: nullopt for a process alone; one that replaces another gets what it
// goes on from elsewhere.
absl::StatusOr<bool> FindCheckpoint(CLI::App& flags, const std::optional<engine::Launch>& launch,
                                    RunOptions& options) {
  const bool is_replacement = launch.has_value() && launch->is_replacement;
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
    if (is_replacement) return false;
    RETURN_IF_ERROR(
        CheckMayStart(flags, options.checkpoints, launch.has_value() && launch->restarts > 0));
    return false;
  }
  RETURN_IF_ERROR(From(Origin::kData,
                       newest.ok() || passed_over.empty() ? newest.status() : passed_over.front()));
  const bool has_epochs = IsOnCommandLine(flags, "--epochs"),
             has_steps = IsOnCommandLine(flags, "--steps");
  RETURN_IF_ERROR(
      From(Origin::kConfiguration, TakeSavedOptions(flags, newest->manifest(), options)));
  RETURN_IF_ERROR(CheckHasMoreToTrain(newest->manifest(), has_epochs, has_steps, options));
  return true;
}

// A run that begins takes it as if it were on the command line, so that it is saved.
absl::Status TakeFolderTokenizer(CLI::App& flags, const RunOptions& options, bool is_silent) {
  ASSIGN_OR_RETURN(const std::string tokenizer, FindFolderTokenizer(options, is_silent));
  if (tokenizer.empty()) return absl::OkStatus();
  return TakeSavedOption(flags, {.name = "--tokenizer", .value = tokenizer});
}

absl::StatusOr<int> Train(CLI::App& flags, RunOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<engine::Launch> launch,
                   From(Origin::kUsage, engine::FindLaunch()));
  options.takes_fingerprint = launch.has_value() || !options.checkpoints.empty();
  absl::StatusOr<std::optional<base::FileLock>> lock = std::nullopt;
  // First, so that what is found does not change.
  if (!launch.has_value() || launch->rank == 0) lock = LockCheckpoints(options.checkpoints);
  absl::StatusOr<bool> resumes = lock.ok() ? FindCheckpoint(flags, launch, options) : lock.status();
  if (resumes.ok() && !*resumes) {
    const absl::Status taken =
        TakeFolderTokenizer(flags, options, launch.has_value() && launch->rank > 0);
    if (!taken.ok()) resumes = taken;
  }
  const std::unique_ptr<engine::Supervisor> supervisor = engine::Supervisor::Find();
  TrainingProcess process(flags, resumes.ok() && *resumes,
                          lock.ok() ? *std::move(lock) : std::nullopt, supervisor.get());
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
