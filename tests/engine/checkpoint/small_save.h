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

// What is trained after so many steps: other values after every other number of them.
class SmallState {
 public:
  explicit SmallState(int64_t step);

  // To save all of it in `folder` as one process. This outlives the task.
  SaveTask Task(const std::string& folder, const Retention& retention = {.newest = 1}) const;
  // To save it as one of several processes: layers take turns, and states are divided.
  SaveTask Task(const std::string& folder, int process, int processes) const;

 private:
  int64_t step_;
  std::map<std::pair<ParameterId, int>, std::vector<float>> values_;
};

// The kernel's calls, except that they do not wait for the disk.
base::SystemCalls& WithoutSync();

// As one process, or process 0 before all others: BeginCheckpoint and WriteCheckpoint.
absl::StatusOr<std::string> BeginAndWrite(base::SystemCalls& calls, const SaveTask& task,
                                          const std::atomic<bool>& cancelled);

// OK if the newest checkpoint in the folder that can be opened is whole and holds the state after
// `steps`, of which there are several allowed.
absl::Status CheckNewest(const std::string& folder, const std::vector<int64_t>& steps);
// OK if the checkpoint holds that state.
absl::Status CheckHolds(const std::string& path, int64_t step);

// The contents of all files in a folder, by name.
std::map<std::string, std::string> FilesIn(const std::string& folder);
// Its entries that are no checkpoints.
std::vector<std::string> LeftoversIn(const std::string& folder);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_CHECKPOINT_SMALL_SAVE_H_
