#ifndef STAGECOACH_TESTS_ENGINE_CHECKPOINT_SMALL_SAVE_H_
#define STAGECOACH_TESTS_ENGINE_CHECKPOINT_SMALL_SAVE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/save.h"

namespace stagecoach::engine {

// Two layers with three parameters of a few values, and the states of AdamW.
ParameterTable SmallParameters();

// The state after N training steps: other values after every other N.
class SmallState {
 public:
  explicit SmallState(int64_t step);

  // Returns the task to save all of it in `folder` as one process. This must outlive the task.
  SaveTask Task(const std::string& folder, const Retention& retention = {.newest = 1}) const;
  // Returns the task of one of several processes: layers take turns, and states are divided.
  SaveTask Task(const std::string& folder, int process, int processes) const;

 private:
  int64_t step_;
  std::map<std::pair<ParameterId, int>, std::vector<float>> values_;
};

// The kernel's calls, except that they do not wait for the disk.
base::SystemCalls& WithoutSync();

// Calls BeginCheckpoint and WriteCheckpoint as one process, or as process 0 before all others.
absl::StatusOr<std::string> BeginAndWrite(base::SystemCalls& calls, const SaveTask& task,
                                          const std::atomic<bool>& cancelled);

// Returns OK if the newest checkpoint in the folder that can be opened is whole and holds the state
// after one of `steps`.
absl::Status CheckNewest(const std::string& folder, const std::vector<int64_t>& steps);
// Returns OK if the checkpoint holds that state.
absl::Status CheckHolds(const std::string& path, int64_t step);

// Returns the contents of all files in a folder, by name.
std::map<std::string, std::string> FilesIn(const std::string& folder);
// Returns its entries that are not checkpoints.
std::vector<std::string> LeftoversIn(const std::string& folder);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_CHECKPOINT_SMALL_SAVE_H_
