#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_GPU_LEDGER_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_GPU_LEDGER_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace stagecoach::kernels {

// The free memory of the GPU. Needs a context there, and creates one.
absl::StatusOr<int64_t> FreeBytes(int gpu);

// What this process has allocated on one GPU, by all its devices there. Lives as long as the
// program. Thread-safe.
class GpuLedger {
 public:
  static GpuLedger& Of(int gpu);

  void Add(int64_t bytes) { allocated_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t allocated_bytes() const { return allocated_bytes_.load(std::memory_order_relaxed); }

  // Held while a device is set up on the GPU, so that each sees only its own growth.
  base::Mutex& setup() { return setup_; }

 private:
  base::Mutex setup_;
  std::atomic<int64_t> allocated_bytes_{0};
};

// Measures how much memory of a GPU a library takes during its setup, which libraries do not
// report: the drop in free memory, less what devices of this process allocated meanwhile. It
// includes what other processes allocate or free meanwhile, and what the driver rounds up.
class GrowthMeter {
 public:
  static absl::StatusOr<GrowthMeter> Start(int gpu);
  // Since Start; not negative.
  absl::StatusOr<int64_t> Growth() const;

 private:
  GrowthMeter(int gpu, int64_t free_and_allocated)
      : gpu_(gpu), free_and_allocated_(free_and_allocated) {}

  int gpu_;
  int64_t free_and_allocated_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_GPU_LEDGER_H_
