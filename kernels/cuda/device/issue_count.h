#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_ISSUE_COUNT_H_
#define STAGECOACH_KERNELS_CUDA_DEVICE_ISSUE_COUNT_H_

#include <cstdint>

namespace stagecoach::kernels {

// Counts what the calling thread has put into CUDA streams: kernels, copies, graphs, and marks of
// events and waits for them. Each takes a place in a queue of the driver. All jobs of a stream run
// on one thread, so this is the stream's own number (Stream::issued).
class IssueCount {
 public:
  static int64_t now() { return count; }
  static void Add(int64_t operations) { count += operations; }
  // Takes back what was counted while a graph was captured, since it was not queued.
  static void ResetTo(int64_t operations) { count = operations; }

 private:
  static inline thread_local int64_t count = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_ISSUE_COUNT_H_
