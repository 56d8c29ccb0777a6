#include "engine/checkpoint/background_save.h"

#include <memory>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"

namespace stagecoach::engine {

BackgroundSave::~BackgroundSave() {
  cancelled_.store(true);
  if (thread_.joinable()) thread_.join();
}

void BackgroundSave::Start(SaveTask task) {
  STAGECOACH_CHECK(!is_under_way(), "a save is under way");
  const auto save = std::make_shared<std::packaged_task<absl::StatusOr<std::string>()>>(
      [this, task = std::move(task)] { return WriteCheckpoint(calls_, task, cancelled_); });
  result_ = save->get_future();
  try {
    thread_ = std::thread([save] { (*save)(); });
  } catch (const std::system_error&) {
    (*save)();  // the system refuses a thread: the steps wait
  }
}

bool BackgroundSave::IsDone(base::Deadline until) const {
  STAGECOACH_CHECK(is_under_way(), "no save is under way");
  if (until.IsNever()) {
    result_.wait();
    return true;
  }
  return result_.wait_until(until.time()) == std::future_status::ready;
}

absl::StatusOr<std::string> BackgroundSave::Finish() {
  if (!is_under_way()) return absl::FailedPreconditionError("no checkpoint is being saved");
  if (thread_.joinable()) thread_.join();
  return result_.get();
}

}  // namespace stagecoach::engine
