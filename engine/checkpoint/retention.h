#ifndef STAGECOACH_ENGINE_CHECKPOINT_RETENTION_H_
#define STAGECOACH_ENGINE_CHECKPOINT_RETENTION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace stagecoach::base {
class SystemCalls;
}

namespace stagecoach::engine {

// Which checkpoints of a run stay when another one has been saved.
struct Retention {
  int newest = 3;           // so many; at least 1
  int64_t every_steps = 0;  // and those at its multiples; 0: none
  // And the one whose parameters had the lowest test loss, of those that were evaluated.
  bool best = true;

  friend bool operator==(const Retention&, const Retention&) = default;
};

// Removes the other checkpoints from the folder of a run. One that cannot be opened is neither
// counted nor removed, so that it can be examined.
absl::Status RemoveOthers(base::SystemCalls& calls, const std::string& folder,
                          const Retention& retention);

// Of a folder in that of a run: takes its name away, so that it is no checkpoint from then on, and
// removes its files. One that has folders in it, which are not ours, stays as it is.
absl::Status RemoveCheckpoint(base::SystemCalls& calls, const std::string& folder,
                              const std::string& name);

// Removes what saves and removals that were interrupted have left in the folder of a run, except
// `own`, the name of a folder, and those that have folders in them.
absl::Status RemoveLeftovers(base::SystemCalls& calls, const std::string& folder,
                             const std::string& own);

// How the names of folders begin that are not checkpoints yet, or no longer.
inline constexpr char kSavingPrefix[] = ".saving-";
inline constexpr char kRemovingPrefix[] = ".removing-";

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_RETENTION_H_
