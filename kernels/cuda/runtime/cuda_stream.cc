#include "kernels/cuda/runtime/cuda_stream.h"

#include <nvtx3/nvToolsExt.h>

#include <chrono>
#include <mutex>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/runtime/backoff.h"
#include "kernels/cuda/runtime/cuda_recording.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// The runtime tells by the addresses which memory they are in: an optimizer's state may be in the
// host's.
absl::Status CopyInOrder(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return absl::OkStatus();
  IssueCount::Add(1);
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
      "cudaMemcpyAsync");
}

// NVTX would otherwise initialize itself at its first range, unordered with the first ranges of
// other threads.
void InitializeRanges() {
  static std::once_flag once;
  std::call_once(once, [] { nvtxInitialize(nullptr); });
}

}  // namespace

absl::StatusOr<CudaStream::Parts> CudaStream::CreateParts(int gpu) {
  using Priority = CudaStreamHandle::Priority;
  using Timing = CudaEvent::Timing;
  ASSIGN_OR_RETURN(CudaStreamHandle compute, CudaStreamHandle::Create(gpu, Priority::kNormal));
  ASSIGN_OR_RETURN(CudaStreamHandle aside, CudaStreamHandle::Create(gpu, Priority::kNormal));
  ASSIGN_OR_RETURN(CudaStreamHandle communication, CudaStreamHandle::Create(gpu, Priority::kHigh));
  ASSIGN_OR_RETURN(CudaStreamHandle copies, CudaStreamHandle::Create(gpu, Priority::kNormal));
  ASSIGN_OR_RETURN(CompletionCounter completions, CompletionCounter::Create(gpu, compute.get()));
  ASSIGN_OR_RETURN(CudaEvent computed, CudaEvent::Create(gpu, Timing::kOff));
  ASSIGN_OR_RETURN(CudaEvent communicated, CudaEvent::Create(gpu, Timing::kOff));
  ASSIGN_OR_RETURN(CudaEvent copied, CudaEvent::Create(gpu, Timing::kOff));
  ASSIGN_OR_RETURN(CudaEvent copies_allowed, CudaEvent::Create(gpu, Timing::kOff));
  ASSIGN_OR_RETURN(CudaEvent forked, CudaEvent::Create(gpu, Timing::kOff));
  ASSIGN_OR_RETURN(CudaEvent joined, CudaEvent::Create(gpu, Timing::kOff));
  ASSIGN_OR_RETURN(std::unique_ptr<ClockMapping> clock, ClockMapping::Create(gpu, compute.get()));
  return Parts{.compute = std::move(compute),
               .aside = std::move(aside),
               .communication = std::move(communication),
               .copies = std::move(copies),
               .completions = std::move(completions),
               .computed = std::move(computed),
               .communicated = std::move(communicated),
               .copied = std::move(copied),
               .copies_allowed = std::move(copies_allowed),
               .forked = std::move(forked),
               .joined = std::move(joined),
               .clock = std::move(clock)};
}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(int gpu) {
  InitializeRanges();
  ASSIGN_OR_RETURN(Parts parts, CreateParts(gpu));
  auto stream = absl::WrapUnique(new CudaStream(gpu, std::move(parts)));
  absl::Status status;
  stream->Run([&] { status = GpuScope::SetHome(gpu); });
  RETURN_IF_ERROR(status);
  return stream;
}

CudaStream::CudaStream(int gpu, Parts parts)
    : gpu_(gpu),
      compute_(std::move(parts.compute)),
      aside_(std::move(parts.aside)),
      communication_(std::move(parts.communication)),
      copies_(std::move(parts.copies)),
      completions_(std::move(parts.completions)),
      computed_(std::move(parts.computed)),
      communicated_(std::move(parts.communicated)),
      copied_(std::move(parts.copied)),
      copies_allowed_(std::move(parts.copies_allowed)),
      forked_(std::move(parts.forked)),
      joined_(std::move(parts.joined)),
      clock_(std::move(parts.clock)),
      queue_([] {}) {}

absl::Status CudaStream::Copy(void* to, const void* from, int64_t bytes) {
  return CopyInOrder(to, from, bytes, compute());
}

absl::Status CudaStream::CopyFromHost(void* to, const void* from_host, int64_t bytes) {
  return CopyInOrder(to, from_host, bytes, compute());
}

absl::Status CudaStream::CopyToHost(void* to_host, const void* from, int64_t bytes) {
  return CopyInOrder(to_host, from, bytes, compute());
}

absl::Status CudaStream::CopyRowsToHost(void* to_host, const void* from, int64_t pitch_bytes,
                                        int64_t row_bytes, int64_t rows) {
  IssueCount::Add(1);
  const auto width = static_cast<size_t>(row_bytes);
  return CudaStatus(cudaMemcpy2DAsync(to_host, width, from, static_cast<size_t>(pitch_bytes), width,
                                      static_cast<size_t>(rows), cudaMemcpyDeviceToHost, compute()),
                    "cudaMemcpy2DAsync");
}

absl::Status CudaStream::CopyAhead(void* to, const void* from_host, int64_t bytes) {
  RETURN_IF_ERROR(copies_allowed_.ComeAfter(copies_.get()));
  copies_ahead_ = true;
  return CopyInOrder(to, from_host, bytes, copies_.get());
}

absl::Status CudaStream::Replay(Recording& recording, absl::FunctionRef<absl::Status()> issue) {
  return static_cast<CudaRecording&>(recording).Play(compute(), issue);
}

absl::Status CudaStream::JoinAside() {
  if (!std::exchange(has_aside_, false)) return absl::OkStatus();
  RETURN_IF_ERROR(joined_.Record(aside_.get()));
  return joined_.ComeAfter(compute_.get());
}

absl::Status CudaStream::Aside(absl::FunctionRef<absl::Status()> issue) {
  STAGECOACH_CHECK(!is_aside_, "work aside within work aside");
  RETURN_IF_ERROR(forked_.Record(compute_.get()));
  RETURN_IF_ERROR(forked_.ComeAfter(aside_.get()));
  has_aside_ = true;
  is_aside_ = true;
  const absl::Status issued = issue();
  is_aside_ = false;
  return issued;
}

absl::Status CudaStream::WaitUntil(absl::FunctionRef<bool()> is_there,
                                   absl::FunctionRef<absl::Status()> poll) {
  const auto done = [&]() -> absl::StatusOr<bool> {
    if (is_there()) return true;
    const cudaError_t state = cudaStreamQuery(compute());
    if (state != cudaErrorNotReady) RETURN_IF_ERROR(CudaStatus(state, "cudaStreamQuery"));
    return false;
  };
  return WaitWithDeadline(done, base::Deadline::Never(), poll);
}

absl::Status CudaStream::Finish(base::Deadline deadline, absl::FunctionRef<absl::Status()> poll) {
  RETURN_IF_ERROR(computed_.Record(compute()));
  RETURN_IF_ERROR(communicated_.Record(communication()));
  if (std::exchange(copies_ahead_, false)) RETURN_IF_ERROR(copied_.Record(copies_.get()));
  RETURN_IF_ERROR(WaitWithDeadline([this] { return AllDone(); }, deadline, poll));
  return clock_->Refresh();
}

absl::Status CudaStream::WaitWithDeadline(absl::FunctionRef<absl::StatusOr<bool>()> done,
                                          base::Deadline deadline,
                                          absl::FunctionRef<absl::Status()> poll) const {
  constexpr std::chrono::milliseconds kPollInterval{1};
  // Spins through the end of a step, and sleeps in waits longer than any step.
  const Backoff patience(std::chrono::seconds(2), std::chrono::milliseconds(1));
  Backoff::Clock::time_point next_poll = patience.start() + kPollInterval;
  for (;;) {
    ASSIGN_OR_RETURN(const bool is_done, done());
    if (is_done) return absl::OkStatus();
    if (Backoff::Clock::now() >= next_poll) {
      RETURN_IF_ERROR(poll());
      next_poll = Backoff::Clock::now() + kPollInterval;
    }
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the GPU did not finish its work in time; its last report is ", reported()));
    }
    patience.Wait();
  }
}

absl::StatusOr<bool> CudaStream::AllDone() const {
  for (const CudaEvent* const end : {&computed_, &communicated_, &copied_}) {
    ASSIGN_OR_RETURN(const bool reached, end->Reached());
    if (!reached) return false;
  }
  return true;
}

void CudaStream::BeginRange(const char* name) { nvtxRangePushA(name); }

void CudaStream::EndRange() { nvtxRangePop(); }

}  // namespace stagecoach::kernels
