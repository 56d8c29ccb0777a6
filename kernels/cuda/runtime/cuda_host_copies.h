#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_HOST_COPIES_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_HOST_COPIES_H_

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/host_copies.h"

namespace stagecoach::kernels {

// Copies by the GPU's copy engines: a CUDA stream for each direction, ordered with the compute
// stream by events.
class CudaHostCopies final : public HostCopies {
 public:
  // `stream` outlives the result.
  static absl::StatusOr<std::unique_ptr<HostCopies>> Create(const CudaStream& stream, int slots);

  absl::Status Start(int slot, Direction direction, absl::Span<const HostCopy> copies) override;
  absl::Status Await(int slot) override;
  absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt(int slot) const override;

 private:
  struct Parts {
    std::array<CudaStreamHandle, 2> lanes;  // index: direction
    CudaEvent issued;                       // what the compute stream had at the last Start
    std::vector<CudaEvent> done;            // index: slot
  };
  CudaHostCopies(const CudaStream& stream, Parts parts);

  const CudaStream& stream_;
  const Parts parts_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_HOST_COPIES_H_
