#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_HANDLES_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_HANDLES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Owners of what the CUDA runtime hands out. Each is made by Create or Allocate for a given GPU,
// whichever one is current; is move-only, and empty after a move; and releases what it owns in its
// destructor, which ignores errors: they have been, or will be, seen by the call that matters.
namespace stagecoach::kernels {

// Makes `gpu` the calling thread's current one. At the end of the scope the GPU of the enclosing
// scope, or of the thread's home, becomes current again; if there is neither, `gpu` stays.
// (Returning to whatever was current before would be wrong: a new thread's current GPU is number 0,
// and choosing it would create an unused context there, of hundreds of megabytes.)
class GpuScope {
 public:
  explicit GpuScope(int gpu);
  ~GpuScope();
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

  // Returns the status of making it current.
  const absl::Status& status() const { return status_; }

  // Makes `gpu` current for the rest of the calling thread's life, except within scopes: for
  // threads in which no other code chooses GPUs.
  static absl::Status SetHome(int gpu);

 private:
  const int enclosing_;  // the GPU of the enclosing scope or the home; -1: neither exists
  const absl::Status status_;
};

namespace internal {

template <typename Handle, cudaError_t (*kGiveBack)(Handle)>
class GpuHandle {
 public:
  GpuHandle() = default;
  GpuHandle(int gpu, Handle handle) : gpu_(gpu), handle_(handle) {}
  GpuHandle(GpuHandle&& other) noexcept
      : gpu_(other.gpu_), handle_(std::exchange(other.handle_, nullptr)) {}
  GpuHandle& operator=(GpuHandle&& other) noexcept {
    GpuHandle moved(std::move(other));
    std::swap(gpu_, moved.gpu_);
    std::swap(handle_, moved.handle_);
    return *this;
  }
  ~GpuHandle() {
    if (handle_ == nullptr) return;
    const GpuScope scope(gpu_);
    static_cast<void>(kGiveBack(handle_));
  }

  Handle get() const { return handle_; }
  int gpu() const { return gpu_; }
  Handle Release() { return std::exchange(handle_, nullptr); }

 private:
  int gpu_ = 0;
  Handle handle_ = nullptr;
};

}  // namespace internal

// A stream that is not synchronized with the legacy default stream in either direction. Its
// destruction does not wait for its work.
class CudaStreamHandle {
 public:
  enum class Priority : uint8_t { kNormal, kHigh };
  static absl::StatusOr<CudaStreamHandle> Create(int gpu, Priority priority);

  cudaStream_t get() const { return handle_.get(); }

 private:
  explicit CudaStreamHandle(internal::GpuHandle<cudaStream_t, cudaStreamDestroy> handle)
      : handle_(std::move(handle)) {}

  internal::GpuHandle<cudaStream_t, cudaStreamDestroy> handle_;
};

// A mark in the order of a stream of the same GPU; streams of any GPU can wait for it.
class CudaEvent {
 public:
  // Only events with timing tell when they were reached (ClockMapping); others are cheaper.
  enum class Timing : uint8_t { kOff, kOn };
  static absl::StatusOr<CudaEvent> Create(int gpu, Timing timing);

  cudaEvent_t get() const { return handle_.get(); }
  absl::Status Record(cudaStream_t stream) const;
  // Makes later work of `stream` wait for the event as it was last recorded.
  absl::Status ComeAfter(cudaStream_t stream) const;
  // Returns whether it was reached, or the first error of work on the GPU. Never waits.
  absl::StatusOr<bool> Reached() const;

 private:
  explicit CudaEvent(internal::GpuHandle<cudaEvent_t, cudaEventDestroy> handle)
      : handle_(std::move(handle)) {}

  internal::GpuHandle<cudaEvent_t, cudaEventDestroy> handle_;
};

// Memory of a GPU, not zeroed; addresses are multiples of 256. Freeing it waits for all work of the
// GPU.
class DeviceMemory {
 public:
  static absl::StatusOr<DeviceMemory> Allocate(int gpu, int64_t bytes);

  std::byte* data() const { return static_cast<std::byte*>(handle_.get()); }
  // Releases ownership: the caller calls cudaFree.
  std::byte* Release() { return static_cast<std::byte*>(handle_.Release()); }

 private:
  explicit DeviceMemory(internal::GpuHandle<void*, cudaFree> handle) : handle_(std::move(handle)) {}

  internal::GpuHandle<void*, cudaFree> handle_;
};

// Page-locked host memory, not zeroed, that every GPU copies from and to directly and that kernels
// can access.
class PinnedMemory {
 public:
  static absl::StatusOr<PinnedMemory> Allocate(int gpu, int64_t bytes);

  std::byte* data() const { return static_cast<std::byte*>(handle_.get()); }
  // Releases ownership: the caller calls cudaFreeHost.
  std::byte* Release() { return static_cast<std::byte*>(handle_.Release()); }
  // Returns the address under which kernels on the GPU access it.
  absl::StatusOr<std::byte*> DeviceAddress() const;

 private:
  explicit PinnedMemory(internal::GpuHandle<void*, cudaFreeHost> handle)
      : handle_(std::move(handle)) {}

  internal::GpuHandle<void*, cudaFreeHost> handle_;
};

// Captured work (cudaStreamEndCapture), and the same made ready for launching.
using CudaGraph = internal::GpuHandle<cudaGraph_t, cudaGraphDestroy>;
using CudaGraphExec = internal::GpuHandle<cudaGraphExec_t, cudaGraphExecDestroy>;

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_HANDLES_H_
