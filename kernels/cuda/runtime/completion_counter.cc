#include "kernels/cuda/runtime/completion_counter.h"

#include <atomic>
#include <cstddef>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/runtime/progress_kernels.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// The call's name since CUDA 11.7.
constexpr const char* kWriteValue = "cuStreamWriteValue32";

cudaError_t FindInDriver(const char* name, void** function,
                         cudaDriverEntryPointQueryResult* result) {
#if CUDART_VERSION >= 12050
  return cudaGetDriverEntryPointByVersion(name, function, 11070, cudaEnableDefault, result);
#else
  return cudaGetDriverEntryPoint(name, function, cudaEnableDefault, result);
#endif
}

}  // namespace

absl::StatusOr<CompletionCounter::WriteValue> CompletionCounter::FindWriteValue() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  RETURN_IF_ERROR(
      CudaStatus(FindInDriver(kWriteValue, &function, &result), "cudaGetDriverEntryPoint"));
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<WriteValue>(function) : nullptr;
}

absl::StatusOr<CompletionCounter> CompletionCounter::Create(int gpu, cudaStream_t stream) {
  ASSIGN_OR_RETURN(PinnedMemory memory, PinnedMemory::Allocate(gpu, sizeof(int32_t)));
  std::memset(memory.data(), 0, sizeof(int32_t));
  ASSIGN_OR_RETURN(std::byte* const on_device, memory.DeviceAddress());
  ASSIGN_OR_RETURN(const WriteValue write_value, FindWriteValue());
  CompletionCounter completions(std::move(memory), reinterpret_cast<int32_t*>(on_device),
                                write_value);
  const absl::Status tried = completions.Signal(stream, 0);
  if (absl::IsUnimplemented(tried)) {
    completions.write_value_ = nullptr;
    return completions;
  }
  RETURN_IF_ERROR(tried);
  return completions;
}

absl::Status CompletionCounter::Signal(cudaStream_t stream, int32_t number) const {
  if (write_value_ == nullptr) {
    return CudaStatus(LaunchReport(stream, on_device_, number), "LaunchReport");
  }
  IssueCount::Add(1);
  // Errors of the driver have the runtime's numbers.
  const auto error = static_cast<cudaError_t>(
      write_value_(stream, reinterpret_cast<CUdeviceptr>(on_device_),
                   static_cast<cuuint32_t>(number), CU_STREAM_WRITE_VALUE_DEFAULT));
  if (error == cudaErrorNotSupported) return absl::UnimplementedError(kWriteValue);
  return CudaStatus(error, kWriteValue);
}

int32_t CompletionCounter::signaled() const {
  return std::atomic_ref(*reinterpret_cast<int32_t*>(memory_.data()))
      .load(std::memory_order_acquire);
}

}  // namespace stagecoach::kernels
