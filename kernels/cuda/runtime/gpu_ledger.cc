#include "kernels/cuda/runtime/gpu_ledger.h"

#include <algorithm>
#include <map>

#include "base/status_macros.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {

absl::StatusOr<int64_t> FreeBytes(int gpu) {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  return static_cast<int64_t>(free_bytes);
}

GpuLedger& GpuLedger::Of(int gpu) {
  static base::Mutex mutex;
  static auto* const ledgers = new std::map<int, GpuLedger>;  // never destroyed: used until the end
  base::MutexLock lock(mutex);
  return (*ledgers)[gpu];
}

absl::StatusOr<GrowthMeter> GrowthMeter::Start(int gpu) {
  ASSIGN_OR_RETURN(const int64_t free_bytes, FreeBytes(gpu));
  return GrowthMeter(gpu, free_bytes + GpuLedger::Of(gpu).allocated_bytes());
}

absl::StatusOr<int64_t> GrowthMeter::Growth() const {
  ASSIGN_OR_RETURN(const int64_t free_bytes, FreeBytes(gpu_));
  const int64_t now = free_bytes + GpuLedger::Of(gpu_).allocated_bytes();
  return std::max<int64_t>(free_and_allocated_ - now, 0);
}

}  // namespace stagecoach::kernels
