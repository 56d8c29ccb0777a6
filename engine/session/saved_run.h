#ifndef STAGECOACH_ENGINE_SESSION_SAVED_RUN_H_
#define STAGECOACH_ENGINE_SESSION_SAVED_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/system/file_lock.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_values.h"
#include "engine/checkpoint/manifest.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/vote.h"
#include "engine/session/machine/notices.h"
#include "engine/session/run_config.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"

// What a session does about checkpoints of runs.
namespace stagecoach::engine {

// Keeps other runs out of a folder of checkpoints, in which two would remove each other's files, as
// long as the returned lock exists. Returns nullopt if there is no such folder. FailedPrecondition
// names the process that has the folder.
absl::StatusOr<std::optional<base::FileLock>> LockCheckpoints(const std::string& folder,
                                                              const Notices& notices);

// Returns folders with checkpoints that the caller may have meant: in this one, beside it, or below
// those.
std::vector<std::string> CheckpointFoldersNear(const std::string& folder);

// Makes a folder in config.runs for the run, which has none yet, and returns its path: named after
// the day of `now` and the model, "runs/2026-11-29-default", with "-2" and so on if there is one
// already. ResourceExhausted: the disk has no room for a checkpoint of `bytes`.
absl::StatusOr<std::string> MakeRunFolder(const RunConfig& config, int64_t bytes, absl::Time now);

// Opens the checkpoint at a path, or the newest one of a run. A notice names each newer one that is
// damaged.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path, const Notices& notices);

// Returns the checkpoint that a run with this configuration would resume from: the newest whole one
// of its folder. Returns nullopt if there is none. AlreadyExists: there are some, but the run is
// not to resume. `is_replacement`: the process replaces another, from whose replicas it gets its
// state.
absl::StatusOr<std::optional<Checkpoint>> FindResumePoint(const RunConfig& config,
                                                          bool is_replacement);

// Returns what reads the run's parameters from its initial checkpoint and, with
// RunConfig::draws_head, draws those of a new head: a function of the seed and the parameter alone.
// `values` outlives it.
Trainer::ValuesOf InitialValuesOf(const RunConfig& config, const TrainingRun& run,
                                  const CheckpointValues& values);

// Returns "data.csv is not what it was" if the data of the run are not those that the checkpoint
// was trained and tested on; "" if they are, or if that is not known.
std::string DescribeOtherData(const Manifest& manifest, const RunConfig& options,
                              const TrainingRun& run);

// An option that decides the results of a run, by the name of the flag that it is on the command
// line ("--seed"): its value in effect, as it is written there, or nullopt if it decides nothing in
// this run.
struct DecisiveOption {
  std::string name;
  std::function<std::optional<std::string>(const RunConfig& config, const TrainingRun& run)>
      in_effect;
};
absl::Span<const DecisiveOption> DecisiveOptions();
// Returns their names and values in effect.
std::vector<std::pair<std::string, std::string>> OptionsInEffect(const RunConfig& config,
                                                                 const TrainingRun& run);
// Returns what checkpoints keep of a configuration, by which the command line can use and resume
// the run, as if all that decides its results had been given there.
std::vector<SavedOption> OptionsOfConfig(const RunConfig& config, const TrainingRun& run);

// Decides when a run is saved besides after every N steps: when a process is asked to, and, if the
// interval is not given, as often as it pays.
class AutomaticSaves {
 public:
  // `rendezvous`: that of all processes; null if there is one. It outlives this. `restarts`: the
  // number of restarts of the run so far. `wants_save`: RunConfig's.
  AutomaticSaves(Rendezvous* rendezvous, absl::Duration deadline, int restarts, bool has_interval,
                 std::function<bool()> wants_save);

  // CheckpointOptions::wanted, and its outcome.
  absl::StatusOr<bool> Wanted();
  void Saved(const SaveReport& save);

 private:
  bool IsWanted();
  void StartVote();

  Rendezvous* const rendezvous_;
  const absl::Duration deadline_;
  const int restarts_;
  const bool has_interval_;
  const std::function<bool()> wants_save_;
  bool is_asked_ = false;  // and nothing has been saved since
  std::optional<Vote> vote_;
  absl::Time last_;
  absl::Duration interval_;
};

// Returns what Fit is told of checkpoints, which keep `options`.
CheckpointOptions CheckpointOptionsOf(const RunConfig& config, const TrainingRun& run,
                                      std::vector<SavedOption> options, AutomaticSaves& automatic);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_SAVED_RUN_H_
