#ifndef STAGECOACH_ENGINE_TRAIN_SAVED_STATE_H_
#define STAGECOACH_ENGINE_TRAIN_SAVED_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/background_save.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/files/large_buffer.h"
#include "engine/runtime/rank_group.h"
#include "engine/runtime/trained_parameters.h"
#include "engine/train/prepared_run.h"

namespace stagecoach::engine {

// Saves what the devices of a run train, and restores it. Among processes, all make the same calls
// at the same places and get the same results. Not thread-safe.
class SavedState {
 public:
  // All arguments outlive it. Pre-condition: the executors do not move.
  SavedState(const PreparedRun& run, RankGroup& group, Executors executors,
             base::SystemCalls& calls);

  // Copies everything to the host and starts to write it concurrently with the run
  // (WriteCheckpoint). `task`: the folder, which is created if it does not exist, retention,
  // deadline, and what the manifest says about how far the run has come and where it comes from.
  // Takes host memory for the copies, once. Pre-condition: no save is in progress.
  absl::Status Begin(SaveTask task);
  bool is_under_way() const { return is_under_way_; }
  // Waits until it is written, and returns its path, or the error of the first process that could
  // not do its part, which does not end the group.
  absl::StatusOr<std::string> Finish();

  // Reads the checkpoint at `path` or, if that is the folder of a run, the newest one that is not
  // damaged; each device takes the layers that it has. Errors, which do not end the group, are
  // those of Trainer::Restore.
  absl::StatusOr<RestoredCheckpoint> Restore(const std::string& path);
  // Called when a value is set from outside: frozen parameters may not be those of the last
  // checkpoint any more.
  void ForgetFrozen() { frozen_.reset(); }

 private:
  // Where the values of frozen parameters have been saved already.
  struct SavedFrozen {
    std::string path;  // of a checkpoint
    std::vector<SavedFile> files;
  };
  // Returns the device that writes a layer, and hashes its files: replicas take turns.
  int OwnerOf(int layer) const;
  bool Writes(int device, const TrainedPiece& piece) const;
  absl::StatusOr<std::vector<HostPiece>> Copy(int device, bool copies_frozen);
  // Returns the checkpoints that Restore tries, one after the other: the same in all processes.
  absl::StatusOr<std::vector<std::string>> Candidates(const std::string& path);
  absl::StatusOr<Manifest> RestoreFrom(const std::string& path);
  absl::Status RestoreTo(int device, const Checkpoint& checkpoint,
                         const std::vector<ShardFile>& all_files);
  // Returns the error of the first process that has one, in all of them.
  absl::Status FirstError(const absl::Status& own);

  const PreparedRun& run_;
  RankGroup& group_;
  const Executors executors_;
  base::SystemCalls& calls_;
  const absl::StatusOr<std::vector<ShardFile>> files_;  // an error is one of saving and restoring
  // A device's last copy: null until the first save.
  struct DeviceCopy {
    LargeBuffer buffer;
    int64_t bytes = 0;
  };
  std::vector<DeviceCopy> copies_;  // by device
  std::optional<SavedFrozen> frozen_;
  BackgroundSave background_;
  bool is_under_way_ = false;  // differs from background_'s after a Finish that could not wait for
                               // it
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_SAVED_STATE_H_
