#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_COMPLETION_COUNTER_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_COMPLETION_COUNTER_H_

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/handles.h"

namespace stagecoach::kernels {

// A number in host memory that a stream sets in its order, so that the host sees how far it has
// come. The driver's memory operations set it without a kernel; if the driver has none, a kernel
// does. Thread-safe, except for Signal.
class CompletionCounter {
 public:
  // Finds out on `stream`, a stream of `gpu`, which operations there are.
  static absl::StatusOr<CompletionCounter> Create(int gpu, cudaStream_t stream);

  // Sets the number in the order of the stream, a stream of the GPU.
  absl::Status Signal(cudaStream_t stream, int32_t number) const;
  // Returns the last number that the stream has reached; 0 at first.
  int32_t signaled() const;

 private:
  using WriteValue = PFN_cuStreamWriteValue32_v11070;

  CompletionCounter(PinnedMemory memory, int32_t* on_device, WriteValue write_value)
      : memory_(std::move(memory)), on_device_(on_device), write_value_(write_value) {}
  static absl::StatusOr<WriteValue> FindWriteValue();

  PinnedMemory memory_;
  int32_t* on_device_;
  WriteValue write_value_;  // null if the driver has none
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_COMPLETION_COUNTER_H_
