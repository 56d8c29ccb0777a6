#include "kernels/cuda/runtime/handles.h"

#include "base/status_macros.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// The GPU that the innermost scope of the calling thread, or its home, made current; it still is.
constexpr int kNone = -1;
// It is in static memory of the thread, even for a library that is loaded later: that is fastest,
// and LeakSanitizer of g++ 12 mistakes some dynamic blocks for those of an older glibc, and
// crashes.
[[gnu::tls_model("initial-exec")]] thread_local int current_gpu = kNone;

absl::Status MakeCurrent(int gpu) {
  if (gpu == current_gpu) return absl::OkStatus();
  return CudaStatus(cudaSetDevice(gpu), "cudaSetDevice");
}

}  // namespace

GpuScope::GpuScope(int gpu) : enclosing_(current_gpu), status_(MakeCurrent(gpu)) {
  if (status_.ok()) current_gpu = gpu;
}

GpuScope::~GpuScope() {
  if (enclosing_ != kNone) static_cast<void>(MakeCurrent(enclosing_));
  current_gpu = enclosing_;
}

absl::Status GpuScope::SetHome(int gpu) {
  RETURN_IF_ERROR(MakeCurrent(gpu));
  current_gpu = gpu;
  return absl::OkStatus();
}

absl::StatusOr<CudaStreamHandle> CudaStreamHandle::Create(int gpu, Priority priority) {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  int least = 0, greatest = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                             "cudaDeviceGetStreamPriorityRange"));
  cudaStream_t stream = nullptr;
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                              priority == Priority::kHigh ? greatest : least),
                 "cudaStreamCreateWithPriority"));
  return CudaStreamHandle({gpu, stream});
}

absl::StatusOr<CudaEvent> CudaEvent::Create(int gpu, Timing timing) {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(
                     &event, timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming),
                 "cudaEventCreateWithFlags"));
  return CudaEvent({gpu, event});
}

absl::Status CudaEvent::Record(cudaStream_t stream) const {
  IssueCount::Add(1);
  return CudaStatus(cudaEventRecord(get(), stream), "cudaEventRecord");
}

absl::Status CudaEvent::ComeAfter(cudaStream_t stream) const {
  IssueCount::Add(1);
  return CudaStatus(cudaStreamWaitEvent(stream, get(), 0), "cudaStreamWaitEvent");
}

absl::StatusOr<bool> CudaEvent::Reached() const {
  const cudaError_t error = cudaEventQuery(get());
  if (error == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
  return true;
}

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(int gpu, int64_t bytes) {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  void* data = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc"));
  return DeviceMemory({gpu, data});
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(int gpu, int64_t bytes) {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  void* data = nullptr;
  RETURN_IF_ERROR(CudaStatus(
      cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped),
      "cudaHostAlloc"));
  return PinnedMemory({gpu, data});
}

absl::StatusOr<std::byte*> PinnedMemory::DeviceAddress() const {
  const GpuScope scope(handle_.gpu());
  RETURN_IF_ERROR(scope.status());
  void* address = nullptr;
  RETURN_IF_ERROR(
      CudaStatus(cudaHostGetDevicePointer(&address, data(), 0), "cudaHostGetDevicePointer"));
  return static_cast<std::byte*>(address);
}

}  // namespace stagecoach::kernels
