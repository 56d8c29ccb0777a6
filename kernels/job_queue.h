#ifndef STAGECOACH_KERNELS_JOB_QUEUE_H_
#define STAGECOACH_KERNELS_JOB_QUEUE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

// A thread that runs jobs and reaches events in the order in which they were pushed: the host side
// of every backend's stream.
class JobQueue {
 public:
  // `prepare` runs first in the thread.
  explicit JobQueue(std::function<void()> prepare);
  ~JobQueue() { End(); }
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // Implement Stream::Submit and Stream::Record.
  absl::Status Submit(Job& job);
  absl::Status Record(Event& event);

  // Waits until everything that was pushed is done, and ends the thread. Nothing may be pushed
  // later.
  void End();

 private:
  // A job to run, or an event to reach; if it is neither, the thread ends.
  struct Entry {
    Job* job = nullptr;
    Event* event = nullptr;
    uint32_t mark = 0;
  };

  absl::Status Push(const Entry& entry);
  void Work();

  // Positions are counted modulo 2^32, slot = position % kMaxPending.
  base::Mutex push_mutex_;
  std::array<Entry, Stream::kMaxPending> ring_;
  std::atomic<uint32_t> pushed_{0};
  std::atomic<uint32_t> popped_{0};
  std::thread thread_;  // last: starts when all else exists
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_JOB_QUEUE_H_
