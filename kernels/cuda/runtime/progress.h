#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_PROGRESS_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_PROGRESS_H_

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/handles.h"

namespace stagecoach::kernels {

// A number in host memory that a stream sets in its order, for the host to see how far it has come.
// The driver's memory operations set it, without a kernel; where the driver has none, a kernel
// does. Thread-safe but for Report.
class Progress {
 public:
  // Tries on `stream`, a stream of `gpu`, which operations there are.
  static absl::StatusOr<Progress> Create(int gpu, cudaStream_t stream);

  // In the order of the stream, a stream of the GPU.
  absl::Status Report(cudaStream_t stream, int32_t number) const;
  // The last number that the stream has come to; 0 at first.
  int32_t reported() const;

 private:
  using WriteValue = PFN_cuStreamWriteValue32_v11070;

  Progress(PinnedMemory memory, int32_t* on_device, WriteValue write_value)
      : memory_(std::move(memory)), on_device_(on_device), write_value_(write_value) {}
  static absl::StatusOr<WriteValue> FindWriteValue();

  PinnedMemory memory_;
  int32_t* on_device_;
  WriteValue write_value_;  // null where the driver has none
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_PROGRESS_H_
