#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_GPU_LEDGER_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_GPU_LEDGER_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

// The GPU memory that this process uses on one GPU. Lives as long as the program. Thread-safe.
class GpuLedger {
 public:
  static GpuLedger& Of(int gpu);
  explicit GpuLedger(int gpu) : gpu_(gpu) {}

  // Returns the free memory of the GPU. Needs a context there, and creates one.
  absl::StatusOr<int64_t> FreeBytes();
  // Measures the memory in use. The context counts as what was in use when the driver was first
  // asked, here or by FreeBytes. The libraries count as the rest, which neither the context nor the
  // devices' allocations account for.
  absl::StatusOr<AcceleratorMemory> Measure();

  // Adds the bytes that a device on the GPU has allocated or, if negative, freed.
  void Add(int64_t bytes) { allocated_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  // Held while a device is set up on the GPU, so that each sees what the previous one has used.
  base::Mutex& setup() { return setup_; }

 private:
  struct DriverMemory {
    int64_t free_bytes, used_bytes;
  };
  static constexpr int64_t kNotAsked = -1;

  absl::StatusOr<DriverMemory> AskDriver();

  const int gpu_;
  base::Mutex setup_;
  std::atomic<int64_t> allocated_bytes_{0};
  std::atomic<int64_t> context_bytes_{kNotAsked};
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_GPU_LEDGER_H_
