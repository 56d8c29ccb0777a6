#ifndef STAGECOACH_ENGINE_CHECKPOINT_RETENTION_H_
#define STAGECOACH_ENGINE_CHECKPOINT_RETENTION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace stagecoach::base {
class SystemCalls;
}

namespace stagecoach::engine {

// Describes which checkpoints of a run are kept when another one has been saved.
struct Retention {
  int newest = 3;           // this many; at least 1
  int64_t every_steps = 0;  // also those at its multiples; 0: none
  // Also keeps the one whose parameters had the best value of this metric, among those that were
  // evaluated; "": none.
  std::string best_by = "test_loss";

  friend bool operator==(const Retention&, const Retention&) = default;
};

// Removes the other checkpoints from the folder of a run. One that cannot be opened is neither
// counted nor removed, so that it can be examined.
absl::Status RemoveOthers(base::SystemCalls& calls, const std::string& folder,
                          const Retention& retention);

// Removes a folder in that of a run: renames it first, so that it is no checkpoint from then on,
// and removes its files. A folder that has folders in it, which are not ours, is left alone.
absl::Status RemoveCheckpoint(base::SystemCalls& calls, const std::string& folder,
                              const std::string& name);

// Removes leftovers of interrupted saves and removals from the folder of a run, except `own`, the
// name of a folder, and those that have folders in them.
absl::Status RemoveLeftovers(base::SystemCalls& calls, const std::string& folder,
                             const std::string& own);

// Prefixes of folders that are not checkpoints yet, or no longer.
inline constexpr char kSavingPrefix[] = ".saving-";
inline constexpr char kRemovingPrefix[] = ".removing-";

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_RETENTION_H_
