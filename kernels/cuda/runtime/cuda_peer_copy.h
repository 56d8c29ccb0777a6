#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_PEER_COPY_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_PEER_COPY_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/peer_copy.h"

namespace stagecoach::kernels {

// A copy by the receiver's communication stream, within one GPU or between two: directly if the two
// can access each other's memory, through the host's memory (by the driver) otherwise.
class CudaPeerCopy final : public PeerCopy {
 public:
  // Lets the two GPUs access each other's memory. `sender` and `receiver`, which may be the same,
  // outlive the result.
  static absl::StatusOr<std::unique_ptr<PeerCopy>> Create(const CudaStream& sender,
                                                          const CudaStream& receiver);

  absl::Status SenderReady() override;
  absl::Status ReceiverReady() override;
  absl::Status Copy(void* to, const void* from, int64_t bytes) override;
  absl::Status SenderContinues() override;
  absl::Status ReceiverContinues() override;
  absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt() const override;

 private:
  CudaPeerCopy(const CudaStream& sender, const CudaStream& receiver, CudaEvent filled,
               CudaEvent freed, CudaEvent done);

  const CudaStream& sender_;
  const CudaStream& receiver_;
  const CudaEvent filled_;  // the sender's; the others are the receiver's
  const CudaEvent freed_;
  const CudaEvent done_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_PEER_COPY_H_
