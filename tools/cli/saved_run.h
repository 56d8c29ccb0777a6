#ifndef STAGECOACH_TOOLS_CLI_SAVED_RUN_H_
#define STAGECOACH_TOOLS_CLI_SAVED_RUN_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file_lock.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/vote.h"
#include "engine/train/fit.h"
#include "tools/cli/cli11_fwd.h"
#include "tools/cli/run_options.h"

// What commands do about checkpoints of runs.
namespace stagecoach::tools {

// Keeps other runs out of a folder of checkpoints, in which two would remove each other's files,
// until what it returns is gone; nothing where there is no such folder. FailedPrecondition, marked
// with its origin, names the process that has the folder.
absl::StatusOr<std::optional<base::FileLock>> LockCheckpoints(const std::string& folder);

// Folders with checkpoints that the one of a name may have meant: in it, beside it, or below those.
std::vector<std::string> CheckpointFoldersNear(const std::string& folder);

// The options of a run, for its checkpoints: those that decide its results, in effect, and of the
// others, such as where it runs, those that were given.
std::vector<engine::SavedOption> OptionsToSave(const CLI::App& flags, const RunOptions& options,
                                               const Run& run);

// Takes the options of a checkpoint for those flags that were not given on the command line.
// `options` are those that `flags` fill. FailedPrecondition: the checkpoint has an option that is
// not known here. Those of TakeSavedOption.
absl::Status TakeSavedOptions(CLI::App& flags, const engine::Manifest& manifest,
                              RunOptions& options);

// The checkpoint at a path, or the newest of a run. Errors are marked with their origin; newer ones
// that are damaged are passed over with a line each.
absl::StatusOr<engine::Checkpoint> OpenCheckpoint(const std::string& path);

// Takes one option of a checkpoint as if it were on the command line. InvalidArgument: its value is
// not allowed there.
absl::Status TakeSavedOption(CLI::App& flags, const engine::SavedOption& saved);

// The data of the run, if they are not those that the checkpoint was trained and tested on:
// "data.csv is not what it was"; "" if they are, or if that is not known.
std::string DescribeOtherData(const engine::Manifest& manifest, const RunOptions& options,
                              const Run& run);

// FailedPrecondition, marked with its origin: the data are others, though no option says so.
absl::Status CheckData(const engine::Manifest& manifest, const RunOptions& options, const Run& run);

// Which of the options that decide the results differ from those of the checkpoint: "--batch was
// 128 and is 256"; "" if none do.
std::string DescribeChanges(const engine::Manifest& manifest, const RunOptions& options,
                            const Run& run);

// When a run saves itself by "--every auto".
class AutomaticSaves {
 public:
  // `rendezvous`: with the other processes; null if there is one. It outlives this. `restarts`: of
  // the run so far.
  AutomaticSaves(engine::Rendezvous* rendezvous, absl::Duration deadline, int restarts);

  // CheckpointOptions::wanted, and what came of it.
  absl::StatusOr<bool> Wanted();
  void Saved(const engine::SaveReport& save);

 private:
  bool IsDue() const { return absl::Now() - last_ >= interval_; }
  void StartVote();

  engine::Rendezvous* const rendezvous_;
  const absl::Duration deadline_;
  const int restarts_;
  std::optional<engine::Vote> vote_;
  absl::Time last_;
  absl::Duration interval_;
};

// What Fit is told of checkpoints. `automatic` is used if the interval is not given.
engine::CheckpointOptions CheckpointOptionsOf(const CLI::App& flags, const RunOptions& options,
                                              const Run& run, AutomaticSaves& automatic);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_SAVED_RUN_H_
