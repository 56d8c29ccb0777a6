#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
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
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/comm/launch.h"
#include "engine/session/initial_run.h"
#include "engine/session/run_config.h"
#include "engine/session/saved_run.h"
#include "engine/session/session.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/flags/saved_options.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/train/training_output.h"

namespace stagecoach::tools {
namespace {

bool IsOnCommandLine(const CLI::App& flags, const char* name) {
  return flags.get_option(name)->count() > 0;
}

// Called if a run that is to resume finds no checkpoint: returns OK if it may be its first start,
// as with scripts and launchers, which always pass --resume. If nothing says what to train, the
// folder is the wrong one.
absl::Status CheckMayStart(const CLI::App& flags, const std::string& folder, bool is_restart) {
  const std::vector<std::string> near = engine::CheckpointFoldersNear(folder);
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
  return base::DataError(absl::StrCat("--resume: there is no checkpoint in ", folder, others,
                                      "; for a new run, say what to train (--data, "
                                      "--model)"),
                         absl::StatusCode::kNotFound);
}

// `has_epochs` and `has_steps` tell whether the command line sets them, rather than the checkpoint.
absl::Status CheckHasMoreToTrain(const engine::Manifest& manifest, bool has_epochs, bool has_steps,
                                 const engine::RunConfig& options) {
  const auto refuse = [](const std::string& had, const char* flag) {
    return base::UsageError(absl::StrCat("nothing to train: the run has had ", had, "; ", flag,
                                         " counts from the start"));
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

// A run that begins takes it as if it were on the command line, so that it is saved.
absl::Status TakeFolderTokenizer(CLI::App& flags, const engine::RunConfig& options,
                                 bool is_silent) {
  ASSIGN_OR_RETURN(const std::string tokenizer, FindFolderTokenizer(options, is_silent));
  if (tokenizer.empty()) return absl::OkStatus();
  return TakeSavedOption(flags, {.name = "--tokenizer", .value = tokenizer});
}

// A run that begins takes it, and what its model needs, as if it were on the command line.
absl::Status TakeInitial(CLI::App& flags, engine::RunConfig& options, bool is_silent) {
  RETURN_IF_ERROR(engine::TakeInitialRun(options, is_silent));
  const std::pair<const char*, std::string> taken[] = {{"--tokenizer", options.tokenizer},
                                                       {"--chat-template", options.chat_template}};
  for (const auto& [name, value] : taken) {
    if (value.empty() || IsOnCommandLine(flags, name)) continue;
    RETURN_IF_ERROR(TakeSavedOption(flags, {.name = name, .value = value}));
  }
  return absl::OkStatus();
}

// Fills in what the flags leave to the checkpoint from which the run resumes; null: it begins.
// `options` are those that `flags` fill.
absl::Status CompleteOptions(CLI::App& flags, const engine::Checkpoint* resumed,
                             const std::optional<engine::Launch>& launch,
                             engine::RunConfig& options) {
  if (resumed == nullptr) {
    const bool is_replacement = launch.has_value() && launch->is_replacement;
    if (options.resume && !options.checkpoints.empty() && !is_replacement) {
      RETURN_IF_ERROR(
          CheckMayStart(flags, options.checkpoints, launch.has_value() && launch->restarts > 0));
    }
    const bool is_silent = launch.has_value() && launch->rank > 0;
    RETURN_IF_ERROR(TakeInitial(flags, options, is_silent));
    return TakeFolderTokenizer(flags, options, is_silent);
  }
  const bool has_epochs = IsOnCommandLine(flags, "--epochs"),
             has_steps = IsOnCommandLine(flags, "--steps");
  RETURN_IF_ERROR(TakeSavedOptions(flags, resumed->manifest(), options));
  return CheckHasMoreToTrain(resumed->manifest(), has_epochs, has_steps, options);
}

// How the results of a run that resumes will differ from those of the run that was saved.
absl::StatusOr<std::string> CompareWithSaved(const engine::Manifest& saved,
                                             const engine::RunConfig& options,
                                             const engine::TrainingRun& run) {
  const absl::Status same = CheckData(saved, options, run);
  RETURN_IF_ERROR(base::WithMessage(
      same, absl::StrCat(same.message(), "; --data-changed resumes with what it is now")));
  std::string changes = DescribeChanges(saved, options, run);
  if (options.data_changed) {
    const std::string other = DescribeOtherData(saved, options, run);
    absl::StrAppend(&changes, changes.empty() || other.empty() ? "" : "; ", other);
  }
  return changes;
}

// The folder of the runs that are not told where to save themselves; "": they are not saved.
std::string RunsFolder() {
  const char* const folder = std::getenv("STAGECOACH_RUNS");
  const std::string name = folder == nullptr || *folder == '\0' ? "runs" : folder;
  return name == "none" ? "" : name;
}

// Programs, and launchers that may start processes on several hosts, say where to save.
absl::StatusOr<bool> SavesUnasked(const OutputOptions& output_options) {
  ASSIGN_OR_RETURN(const std::optional<engine::Launch> launch, engine::FindLaunch());
  return !output_options.json && (!launch.has_value() || launch->launcher == engine::kOwnLauncher);
}

absl::StatusOr<int> Train(CLI::App& flags, engine::RunConfig& options,
                          const OutputOptions& output_options) {
  ASSIGN_OR_RETURN(const bool saves_unasked, SavesUnasked(output_options));
  if (!saves_unasked) options.runs.clear();
  SaveOnSignal();
  TrainingOutput output(output_options);
  options.notices.on_notice = [&output](const std::string& line) { output.Notice(line); };
  std::optional<int> refused;
  const engine::TrainingHooks hooks = {
      .observer = &output,
      .complete = [&](const engine::Checkpoint* resumed,
                      const std::optional<engine::Launch>& launch,
                      engine::RunConfig& config) -> absl::Status {
        RETURN_IF_ERROR(CompleteOptions(flags, resumed, launch, options));
        options.takes_fingerprint = config.takes_fingerprint;
        config = options;
        return absl::OkStatus();
      },
      .options_to_save = std::bind_front(&OptionsToSave, std::cref(flags)),
      .compare = CompareWithSaved,
      .on_refused = [&](const absl::Status& error) { refused = Fail("train", error); }};
  const absl::StatusOr<engine::TrainingOutcome> outcome = engine::Train(options, hooks);
  if (refused.has_value()) return *refused;
  if (!outcome.ok()) output.Fail(outcome.status());
  RETURN_IF_ERROR(outcome.status());
  if (!output.is_logged()) return kExitCannotWrite;
  return outcome->fit.stopped ? StatusOfStop(outcome->stop_reason) : kExitOk;
}

}  // namespace

Command AddTrainCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("train", "Train a model split over several devices");
  const auto options = std::make_shared<engine::RunConfig>();
  options->runs = RunsFolder();
  const auto output = std::make_shared<OutputOptions>();
  AddTrainFlags(*flags, *options, output.get());
  return {flags, [flags, options, output] { return Train(*flags, *options, *output); }};
}

}  // namespace stagecoach::tools
