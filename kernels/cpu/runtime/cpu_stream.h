#ifndef STAGECOACH_KERNELS_CPU_RUNTIME_CPU_STREAM_H_
#define STAGECOACH_KERNELS_CPU_RUNTIME_CPU_STREAM_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "kernels/device.h"
#include "kernels/job_queue.h"

namespace stagecoach::kernels {

// Equal parts of [0, extent), each at most `target` long and a multiple of 16 (except the last).
// They depend on the extent alone, never on the number of threads, so that any number of threads
// computes the same bits.
struct Tiling {
  Tiling(int64_t extent_in, int64_t target) : extent(extent_in) {
    const int64_t parts = std::max<int64_t>((extent + target - 1) / target, 1);
    size = std::max<int64_t>(((extent + parts - 1) / parts + 15) / 16, 1) * 16;
    count = static_cast<int>((extent + size - 1) / size);
  }
  int64_t begin(int tile) const { return tile * size; }
  int64_t length(int tile) const { return std::min(size, extent - tile * size); }
  int64_t last_length() const { return length(count - 1); }

  int64_t extent;
  int64_t size = 0;
  int count = 0;
};

// The stream of a CPU device: one worker thread that runs the jobs and the work they issue, and
// helpers that share its operations' tiles.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(int threads);  // throws std::system_error if the system refuses a thread
  ~CpuStream() override;

  absl::Status Submit(Job& job) override { return queue_.Submit(job); }
  absl::Status Record(Event& event) override { return queue_.Record(event); }
  absl::Status Copy(void* to, const void* from, int64_t bytes) override;
  absl::Status CopyFromHost(void* to, const void* from_host, int64_t bytes) override {
    return Copy(to, from_host, bytes);
  }
  absl::Status CopyToHost(void* to_host, const void* from, int64_t bytes) override {
    return Copy(to_host, from, bytes);
  }
  absl::Status AllowCopyAhead() override { return absl::OkStatus(); }
  absl::Status CopyAhead(void* to, const void* from_host, int64_t bytes) override {
    return Copy(to, from_host, bytes);
  }
  absl::Status Replay(Recording& recording, absl::FunctionRef<absl::Status()> issue) override;
  absl::Status Report(int32_t position) override;
  int32_t reported() const override { return reported_.load(std::memory_order_acquire); }
  absl::Status WaitUntil(absl::FunctionRef<bool()> is_there,
                         absl::FunctionRef<absl::Status()> poll) override;
  absl::Status Finish(base::Deadline deadline, absl::FunctionRef<absl::Status()> poll) override;
  void BeginRange(const char* /*name*/) override {}
  void EndRange() override {}

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls function(tile, slot) once for each tile in [0, tiles), on the team; slot in [0,
  // threads()) tells which member runs it, for scratch memory. Returns when all are done. Call only
  // from a job of this stream. The order of the tiles, and which thread runs which, are
  // unspecified.
  using TileFunction = absl::FunctionRef<void(int tile, int slot)>;
  void ParallelFor(int tiles, TileFunction function);

 private:
  void EndHelpers();
  void Help(int slot);
  void RunTiles(int slot);

  std::atomic<int32_t> reported_{-1};

  // The tiles being shared. The worker writes this before it raises round_.
  const TileFunction* function_ = nullptr;
  int tiles_ = 0;
  std::atomic<int> next_tile_{0};
  std::atomic<uint32_t> round_{0};
  std::atomic<uint32_t> busy_helpers_{0};
  std::atomic<bool> stopping_{false};

  std::vector<std::thread> helpers_;
  JobQueue queue_;  // last: its thread starts when everything else exists
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_RUNTIME_CPU_STREAM_H_
