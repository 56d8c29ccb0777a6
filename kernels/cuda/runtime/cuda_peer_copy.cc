#include "kernels/cuda/runtime/cuda_peer_copy.h"

#include <utility>

#include "absl/memory/memory.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

absl::Status LetReach(int gpu, int other) {
  int can = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDeviceCanAccessPeer(&can, gpu, other), "cudaDeviceCanAccessPeer"));
  if (can == 0) return absl::OkStatus();  // copies then pass through the host
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
    return absl::OkStatus();
  }
  return CudaStatus(error, "cudaDeviceEnablePeerAccess");
}

}  // namespace

CudaPeerCopy::CudaPeerCopy(const CudaStream& sender, const CudaStream& receiver, CudaEvent filled,
                           CudaEvent freed, CudaEvent done)
    : sender_(sender),
      receiver_(receiver),
      filled_(std::move(filled)),
      freed_(std::move(freed)),
      done_(std::move(done)) {}

absl::StatusOr<std::unique_ptr<PeerCopy>> CudaPeerCopy::Create(const CudaStream& sender,
                                                               const CudaStream& receiver) {
  using Timing = CudaEvent::Timing;
  if (sender.gpu() != receiver.gpu()) {
    RETURN_IF_ERROR(LetReach(sender.gpu(), receiver.gpu()));
    RETURN_IF_ERROR(LetReach(receiver.gpu(), sender.gpu()));
  }
  ASSIGN_OR_RETURN(CudaEvent filled, CudaEvent::Create(sender.gpu(), Timing::kOff));
  ASSIGN_OR_RETURN(CudaEvent freed, CudaEvent::Create(receiver.gpu(), Timing::kOff));
  ASSIGN_OR_RETURN(CudaEvent done, CudaEvent::Create(receiver.gpu(), Timing::kOn));
  return std::unique_ptr<PeerCopy>(absl::WrapUnique(
      new CudaPeerCopy(sender, receiver, std::move(filled), std::move(freed), std::move(done))));
}

absl::Status CudaPeerCopy::SenderReady() { return filled_.Record(sender_.compute()); }

absl::Status CudaPeerCopy::ReceiverReady() { return freed_.Record(receiver_.compute()); }

absl::Status CudaPeerCopy::Copy(void* to, const void* from, int64_t bytes) {
  const cudaStream_t stream = receiver_.communication();
  RETURN_IF_ERROR(filled_.ComeAfter(stream));
  RETURN_IF_ERROR(freed_.ComeAfter(stream));
  const auto size = static_cast<size_t>(bytes);
  if (bytes != 0 && sender_.gpu() == receiver_.gpu()) {
    RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream),
                               "cudaMemcpyAsync"));
  } else if (bytes != 0) {
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyPeerAsync(to, receiver_.gpu(), from, sender_.gpu(), size, stream),
                   "cudaMemcpyPeerAsync"));
  }
  return done_.Record(stream);
}

absl::Status CudaPeerCopy::SenderContinues() { return done_.ComeAfter(sender_.compute()); }

absl::Status CudaPeerCopy::ReceiverContinues() { return done_.ComeAfter(receiver_.compute()); }

absl::StatusOr<std::chrono::steady_clock::time_point> CudaPeerCopy::DoneAt() const {
  return receiver_.clock().At(done_);
}

}  // namespace stagecoach::kernels
