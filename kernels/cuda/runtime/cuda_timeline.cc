#include "kernels/cuda/runtime/cuda_timeline.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/backoff.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {

ClockMapping::ClockMapping(int gpu, cudaStream_t stream, Pair first, Pair second)
    : gpu_(gpu), stream_(stream), pairs_{std::move(first), std::move(second)} {}

absl::StatusOr<std::unique_ptr<ClockMapping>> ClockMapping::Create(int gpu, cudaStream_t stream) {
  ASSIGN_OR_RETURN(CudaEvent first_event, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
  ASSIGN_OR_RETURN(CudaEvent second_event, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
  Pair first{std::move(first_event), {}}, second{std::move(second_event), {}};
  RETURN_IF_ERROR(Measure(gpu, stream, first));
  RETURN_IF_ERROR(Measure(gpu, stream, second));
  return absl::WrapUnique(new ClockMapping(gpu, stream, std::move(first), std::move(second)));
}

absl::Status ClockMapping::Measure(int gpu, cudaStream_t stream, Pair& pair) {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  // If the host was interrupted meanwhile, it would pair the event with a time far from its own.
  constexpr std::chrono::microseconds kUndisturbed{50};
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    const Clock::time_point before = Clock::now();
    RETURN_IF_ERROR(pair.event.Record(stream));
    RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(pair.event.get()), "cudaEventSynchronize"));
    const Clock::duration took = Clock::now() - before;
    pair.time = before + took / 2;
    if (took <= kUndisturbed) break;
  }
  return absl::OkStatus();
}

absl::Status ClockMapping::Refresh() {
  base::MutexLock lock(mutex_);
  if (Clock::now() - pairs_[1 - older_].time < kMaxAge) return absl::OkStatus();
  RETURN_IF_ERROR(Measure(gpu_, stream_, pairs_[older_]));
  older_ = 1 - older_;
  return absl::OkStatus();
}

absl::StatusOr<std::chrono::steady_clock::time_point> ClockMapping::At(
    const CudaEvent& event) const {
  const GpuScope scope(gpu_);
  RETURN_IF_ERROR(scope.status());
  base::MutexLock lock(mutex_);
  const Pair& from = pairs_[older_];
  float elapsed_ms = 0.0F;
  RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&elapsed_ms, from.event.get(), event.get()),
                             "cudaEventElapsedTime"));
  const std::chrono::duration<double, std::milli> elapsed(elapsed_ms);
  return from.time + std::chrono::duration_cast<Clock::duration>(elapsed);
}

CudaTimeline::CudaTimeline(const CudaStream& stream, std::vector<CudaEvent> events)
    : stream_(stream), events_(std::move(events)) {}

absl::StatusOr<std::unique_ptr<Timeline>> CudaTimeline::Create(const CudaStream& stream,
                                                               int slots) {
  STAGECOACH_CHECK(slots >= 0, absl::StrCat("a timeline of ", slots, " slots"));
  std::vector<CudaEvent> events;
  events.reserve(static_cast<size_t>(slots));
  for (int i = 0; i < slots; ++i) {
    ASSIGN_OR_RETURN(CudaEvent event, CudaEvent::Create(stream.gpu(), CudaEvent::Timing::kOn));
    events.push_back(std::move(event));
  }
  return std::unique_ptr<Timeline>(absl::WrapUnique(new CudaTimeline(stream, std::move(events))));
}

absl::Status CudaTimeline::Mark(int slot) {
  return events_.at(static_cast<size_t>(slot)).Record(stream_.compute());
}

absl::StatusOr<std::chrono::steady_clock::time_point> CudaTimeline::At(int slot) const {
  return stream_.clock().At(events_.at(static_cast<size_t>(slot)));
}

absl::Status CudaTimeline::Wait(int slot) const {
  const CudaEvent& event = events_.at(static_cast<size_t>(slot));
  const Backoff patience(std::chrono::seconds(2), std::chrono::milliseconds(1));
  for (;; patience.Wait()) {
    ASSIGN_OR_RETURN(const bool reached, event.Reached());
    if (reached) return absl::OkStatus();
  }
}

}  // namespace stagecoach::kernels
