#include "kernels/cuda/runtime/gpu_ledger.h"

#include <algorithm>
#include <map>

#include "base/status_macros.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {

GpuLedger& GpuLedger::Of(int gpu) {
  static base::Mutex mutex;
  static auto* const ledgers = new std::map<int, GpuLedger>;  // never destroyed: used until the end
  base::MutexLock lock(mutex);
  return ledgers->try_emplace(gpu, gpu).first->second;
}

absl::StatusOr<GpuLedger::DriverMemory> GpuLedger::AskDriver() {
  const GpuScope scope(gpu_);
  RETURN_IF_ERROR(scope.status());
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  const DriverMemory memory = {.free_bytes = static_cast<int64_t>(free_bytes),
                               .used_bytes = static_cast<int64_t>(total_bytes - free_bytes)};
  int64_t not_asked = kNotAsked;
  context_bytes_.compare_exchange_strong(not_asked, memory.used_bytes);
  return memory;
}

absl::StatusOr<int64_t> GpuLedger::FreeBytes() {
  ASSIGN_OR_RETURN(const DriverMemory memory, AskDriver());
  return memory.free_bytes;
}

absl::StatusOr<AcceleratorMemory> GpuLedger::Measure() {
  ASSIGN_OR_RETURN(const DriverMemory memory, AskDriver());
  const int64_t allocated = allocated_bytes_.load(), context = context_bytes_.load();
  return AcceleratorMemory{
      .allocated_bytes = allocated,
      .context_bytes = context,
      .library_bytes = std::max<int64_t>(memory.used_bytes - context - allocated, 0)};
}

}  // namespace stagecoach::kernels
