#include "kernels/cuda/runtime/cuda_host_copies.h"

#include <cstddef>
#include <utility>

#include "absl/memory/memory.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<HostCopies>> CudaHostCopies::Create(const CudaStream& stream,
                                                                   int slots) {
  using Priority = CudaStreamHandle::Priority;
  const int gpu = stream.gpu();
  ASSIGN_OR_RETURN(CudaStreamHandle to_host, CudaStreamHandle::Create(gpu, Priority::kNormal));
  ASSIGN_OR_RETURN(CudaStreamHandle from_host, CudaStreamHandle::Create(gpu, Priority::kNormal));
  ASSIGN_OR_RETURN(CudaEvent issued, CudaEvent::Create(gpu, CudaEvent::Timing::kOff));
  Parts parts = {
      .lanes = {std::move(to_host), std::move(from_host)}, .issued = std::move(issued), .done = {}};
  for (int i = 0; i < slots; ++i) {
    ASSIGN_OR_RETURN(CudaEvent done, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
    parts.done.push_back(std::move(done));
  }
  return absl::WrapUnique<HostCopies>(new CudaHostCopies(stream, std::move(parts)));
}

CudaHostCopies::CudaHostCopies(const CudaStream& stream, Parts parts)
    : stream_(stream), parts_(std::move(parts)) {}

absl::Status CudaHostCopies::Start(int slot, Direction direction,
                                   absl::Span<const HostCopy> copies) {
  const cudaStream_t lane = parts_.lanes.at(static_cast<size_t>(direction)).get();
  RETURN_IF_ERROR(parts_.issued.Record(stream_.compute()));
  RETURN_IF_ERROR(parts_.issued.ComeAfter(lane));
  for (const HostCopy& copy : copies) {
    IssueCount::Add(1);
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(copy.to, copy.from, static_cast<size_t>(copy.bytes),
                                   direction == Direction::kToHost ? cudaMemcpyDeviceToHost
                                                                   : cudaMemcpyHostToDevice,
                                   lane),
                   "cudaMemcpyAsync"));
  }
  return parts_.done.at(static_cast<size_t>(slot)).Record(lane);
}

absl::Status CudaHostCopies::Await(int slot) {
  return parts_.done.at(static_cast<size_t>(slot)).ComeAfter(stream_.compute());
}

absl::StatusOr<std::chrono::steady_clock::time_point> CudaHostCopies::DoneAt(int slot) const {
  return stream_.clock().At(parts_.done.at(static_cast<size_t>(slot)));
}

}  // namespace stagecoach::kernels
