#ifndef STAGECOACH_TOOLS_STAGECOACH_FLAGS_SAVED_OPTIONS_H_
#define STAGECOACH_TOOLS_STAGECOACH_FLAGS_SAVED_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/manifest.h"
#include "engine/session/run_config.h"
#include "tools/stagecoach/flags/cli11_fwd.h"

// The flags that a checkpoint keeps, and what a command takes from them.
namespace stagecoach::tools {

// The options of a run, for its checkpoints: those that decide its results, in effect, and of the
// others, such as where it runs, those that were given.
std::vector<engine::SavedOption> OptionsToSave(const CLI::App& flags,
                                               const engine::RunConfig& options,
                                               const engine::TrainingRun& run);

// Takes the options of a checkpoint for those flags that were not given on the command line.
// `options` are those that `flags` fill. FailedPrecondition: the checkpoint has an option that is
// not known here. Those of TakeSavedOption.
absl::Status TakeSavedOptions(CLI::App& flags, const engine::Manifest& manifest,
                              engine::RunConfig& options);

// Takes one option of a checkpoint as if it were on the command line. InvalidArgument: its value is
// not allowed there.
absl::Status TakeSavedOption(CLI::App& flags, const engine::SavedOption& saved);

// FailedPrecondition: the data are others, though no option says so.
absl::Status CheckData(const engine::Manifest& manifest, const engine::RunConfig& options,
                       const engine::TrainingRun& run);

// Which of the options that decide the results differ from those of the checkpoint:
// "--global-batch-size was 128 and is 256"; "" if none do.
std::string DescribeChanges(const engine::Manifest& manifest, const engine::RunConfig& options,
                            const engine::TrainingRun& run);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_FLAGS_SAVED_OPTIONS_H_
