#include "kernels/job_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/system/futex.h"

namespace stagecoach::kernels {

JobQueue::JobQueue(std::function<void()> prepare) {
  thread_ = std::thread([this, prepare = std::move(prepare)] {
    prepare();
    Work();
  });
}

void JobQueue::End() {
  if (!thread_.joinable()) return;
  while (!Push(Entry{}).ok()) std::this_thread::yield();
  thread_.join();
}

absl::Status JobQueue::Submit(Job& job) { return Push(Entry{.job = &job}); }

absl::Status JobQueue::Record(Event& event) { return Push(Entry{.event = &event}); }

absl::Status JobQueue::Push(const Entry& entry) {
  base::MutexLock lock(push_mutex_);
  const uint32_t position = pushed_.load(std::memory_order_relaxed);
  if (position - popped_.load(std::memory_order_acquire) == Stream::kMaxPending) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", Stream::kMaxPending, " jobs wait in the stream"));
  }
  Entry& placed = ring_[position % Stream::kMaxPending];
  placed = entry;
  // Only now is it certain that the mark will be reached.
  if (placed.event != nullptr) placed.mark = placed.event->StartMark();
  pushed_.store(position + 1, std::memory_order_release);
  base::WakeAll(pushed_);
  return absl::OkStatus();
}

void JobQueue::Work() {
  for (uint32_t position = 0;; ++position) {
    static_cast<void>(base::WaitWhileEqual(pushed_, position, base::Deadline::Never()));
    const Entry entry = ring_[position % Stream::kMaxPending];
    popped_.store(position + 1, std::memory_order_release);
    if (entry.job != nullptr) {
      entry.job->Run();
    } else if (entry.event != nullptr) {
      entry.event->Reach(entry.mark);
    } else {
      return;
    }
  }
}

}  // namespace stagecoach::kernels
