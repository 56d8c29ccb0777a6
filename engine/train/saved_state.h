#ifndef STAGECOACH_ENGINE_TRAIN_SAVED_STATE_H_
#define STAGECOACH_ENGINE_TRAIN_SAVED_STATE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/background_save.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/large_buffer.h"
#include "engine/run/rank_group.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trained_parameters.h"

namespace stagecoach::engine {

// Saves what the devices of a run train, and puts it back. Among processes all make the same calls
// at the same places and have the same results. Not thread-safe.
class SavedState {
 public:
  // All outlive it. Pre-condition: the executors stay where they are.
  SavedState(const PreparedRun& run, RankGroup& group, Executors executors,
             base::SystemCalls& calls);

  // Copies everything to the host and has it written beside the run (WriteCheckpoint). `task`:
  // folder, which is made if it is not there, retention, deadline, and what the manifest says of
  // how far the run has come and where it comes from. Takes host memory for the copies, once.
  // Pre-condition: no save is under way.
  absl::Status Begin(SaveTask task);
  bool is_under_way() const { return is_under_way_; }
  // Waits until it is written: its path, or the error of the first process that could not do its
  // part, which does not end the group.
  absl::StatusOr<std::string> Finish();

  // Reads the checkpoint at `path` or, if that is the folder of a run, the newest one that is not
  // damaged; each device takes the layers that it has. Errors, which do not end the group, are
  // those of Trainer::Restore.
  absl::StatusOr<RestoredCheckpoint> Restore(const std::string& path);

 private:
  // Which device writes a layer, and hashes its files: replicas take turns.
  int OwnerOf(int layer) const;
  bool Writes(int device, const TrainedPiece& piece) const;
  absl::StatusOr<std::vector<HostPiece>> Copy(int device);
  // Those that Restore tries, one after the other: the same in all processes.
  absl::StatusOr<std::vector<std::string>> Candidates(const std::string& path);
  absl::StatusOr<Manifest> RestoreFrom(const std::string& path);
  absl::Status RestoreTo(int device, const Checkpoint& checkpoint);
  // The error of the first process that has one, in all of them.
  absl::Status FirstError(const absl::Status& own);

  const PreparedRun& run_;
  RankGroup& group_;
  const Executors executors_;
  base::SystemCalls& calls_;
  const absl::StatusOr<std::vector<ShardFile>> files_;  // an error is one of saving and restoring
  std::vector<LargeBuffer> copies_;                     // by device; null until the first save
  BackgroundSave background_;
  bool is_under_way_ = false;  // other than background_'s after a Finish that could not wait for it
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_SAVED_STATE_H_
