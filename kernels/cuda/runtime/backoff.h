#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_BACKOFF_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <thread>

namespace stagecoach::kernels {

// Waits with growing intervals: short waits spin, long ones sleep in naps that lengthen the wait by
// at most a few percent.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  Backoff(Clock::duration spin, Clock::duration longest_nap)
      : spin_(spin), longest_nap_(longest_nap) {}

  Clock::time_point start() const { return start_; }

  void Wait() const {
    const Clock::duration waited = Clock::now() - start_;
    if (waited < spin_) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / 32, longest_nap_));
    }
  }

 private:
  const Clock::duration spin_, longest_nap_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_BACKOFF_H_
