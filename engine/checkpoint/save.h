#ifndef STAGECOACH_ENGINE_CHECKPOINT_SAVE_H_
#define STAGECOACH_ENGINE_CHECKPOINT_SAVE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/system/system_calls.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/retention.h"
#include "engine/checkpoint/shard_files.h"

namespace stagecoach::engine {

// Elements of a parameter, or of one of its states, in host memory (TrainedPiece): float32, or a
// whole quantized matrix.
struct HostPiece {
  ParameterId parameter;
  int state = kTrainedValue;
  int64_t first = 0;
  absl::Span<const std::byte> bytes;
};

// The part of a checkpoint that one process writes. All processes of a run write to the same
// folder, which all of them must see; together their pieces contain every element once.
struct SaveTask {
  std::string folder;  // that of the run: the checkpoint gets a folder in it
  std::string id;  // identifies this save: the same in all processes, and different for every save
  Manifest manifest;  // the step; in process 0 everything except the files
  Retention retention;
  std::vector<ShardFile> files;  // of the whole checkpoint
  std::vector<int> owners;       // by file: the process that writes its header and hashes it
  int process = 0;
  int processes = 1;
  std::vector<HostPiece> pieces;  // of this process
  // The files of frozen parameters are those of an earlier checkpoint: no process has pieces of
  // them. `linked`: what they are, in process 0.
  bool links_frozen = false;
  std::vector<SavedFile> linked;
  absl::Duration deadline = absl::Minutes(5);  // for the waits for other processes
};

// Creates the temporary folder of a checkpoint: called in process 0, before any process writes to
// it.
absl::Status BeginCheckpoint(base::SystemCalls& calls, const SaveTask& task);
// Links the files of frozen parameters of an earlier checkpoint of the same run, whose manifest has
// `saved`, into that folder: called in process 0 after BeginCheckpoint. Returns what they are; none
// if there is none, one is not as it was saved, or the file system has no links, and then they must
// be written.
std::vector<SavedFile> LinkFrozenFiles(base::SystemCalls& calls, const SaveTask& task,
                                       const std::string& earlier,
                                       absl::Span<const SavedFile> saved);
// Returns FailedPrecondition if this process does not see the folder.
absl::Status CheckSeesFolder(const SaveTask& task);

// Writes a checkpoint, after the two calls above, so that whatever happens to the process or the
// machine, its folder has that name only if all of it is on disk:
//   1. Each process writes its pieces into files of a temporary folder, and syncs them.
//   2. The owner of each file reads it back, all of it, and hashes what it reads; a process
//      compares what it has written with its memory. (A process that is alone does so before it
//      syncs.)
//   3. Process 0 writes the manifest with these hashes, syncs the folder, renames it, and
//      syncs the folder of the run. Then it removes what `retention` does not keep.
// Files in the temporary folder tell processes how far the others are, so that this needs no
// connection between them and can run concurrently with training.
//
// Returns the path of the checkpoint, whose name is final only in process 0. ResourceExhausted,
// Unavailable or another error of the system, with a path: the checkpoint was not written, and
// those before are unchanged; or it was, but an older one, whose path this is, cannot be removed.
// DataLoss: what was read back is not what was written. Cancelled: `cancelled` has become true.
// Aborted: another process has failed. DeadlineExceeded: one did not come.
absl::StatusOr<std::string> WriteCheckpoint(base::SystemCalls& calls, const SaveTask& task,
                                            const std::atomic<bool>& cancelled);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_SAVE_H_
