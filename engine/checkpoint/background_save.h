#ifndef STAGECOACH_ENGINE_CHECKPOINT_BACKGROUND_SAVE_H_
#define STAGECOACH_ENGINE_CHECKPOINT_BACKGROUND_SAVE_H_

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "engine/checkpoint/save.h"

namespace stagecoach::engine {

// Runs WriteCheckpoint on a thread of its own, one at a time. Not thread-safe.
class BackgroundSave {
 public:
  explicit BackgroundSave(base::SystemCalls& calls) : calls_(calls) {}
  // Cancels a save in progress.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Pre-condition: none is in progress. What the task refers to must not change until Finish
  // returns.
  void Start(SaveTask task);
  bool is_under_way() const { return result_.valid(); }
  // Waits for the save in progress, at most until the deadline, and returns whether it is done.
  // Pre-condition: there is one.
  bool IsDone(base::Deadline until) const;
  // Waits for it however long it takes, and returns its result. FailedPrecondition: there is none.
  absl::StatusOr<std::string> Finish();

 private:
  base::SystemCalls& calls_;
  std::atomic<bool> cancelled_ = false;
  std::future<absl::StatusOr<std::string>> result_;
  std::thread thread_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_BACKGROUND_SAVE_H_
