#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_STREAM_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/runtime/completion_counter.h"
#include "kernels/cuda/runtime/cuda_timeline.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/device.h"
#include "kernels/job_queue.h"

namespace stagecoach::kernels {

// The stream of a CUDA device: a thread that runs the jobs, with the GPU as its current one; and
// CUDA streams, ordered by events: one for what operations issue, one for what they run aside, one
// of high priority for what arrives and leaves (peer copies and communicators), and one for copies
// ahead.
class CudaStream final : public Stream {
 public:
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(int gpu);
  ~CudaStream() override = default;

  int gpu() const { return gpu_; }
  // Operations issue to this stream.
  cudaStream_t compute() const { return is_aside_ ? aside_.get() : compute_.get(); }
  cudaStream_t communication() const { return communication_.get(); }
  // Maps events of either stream to the host's clock, once Finish has returned after they were
  // recorded.
  const ClockMapping& clock() const { return *clock_; }

  absl::Status Submit(Job& job) override { return queue_.Submit(job); }
  absl::Status Record(Event& event) override { return queue_.Record(event); }
  absl::Status Copy(void* to, const void* from, int64_t bytes) override;
  absl::Status CopyFromHost(void* to, const void* from_host, int64_t bytes) override;
  absl::Status CopyToHost(void* to_host, const void* from, int64_t bytes) override;
  // Copies rows of `row_bytes`, which begin `pitch_bytes` apart, to the host one right after the
  // other.
  absl::Status CopyRowsToHost(void* to_host, const void* from, int64_t pitch_bytes,
                              int64_t row_bytes, int64_t rows);
  absl::Status AllowCopyAhead() override { return copies_allowed_.Record(compute()); }
  absl::Status CopyAhead(void* to, const void* from_host, int64_t bytes) override;
  absl::Status Replay(Recording& recording, absl::FunctionRef<absl::Status()> issue) override;
  absl::Status JoinAside() override;
  // Runs what `issue` issues to compute() concurrently with what is issued later, until JoinAside.
  // For jobs only.
  absl::Status Aside(absl::FunctionRef<absl::Status()> issue);
  absl::Status Report(int32_t position) override {
    return completions_.Signal(compute(), position);
  }
  int32_t reported() const override { return completions_.signaled(); }
  int64_t issued() const override { return IssueCount::now(); }
  absl::Status WaitUntil(absl::FunctionRef<bool()> is_there,
                         absl::FunctionRef<absl::Status()> poll) override;
  absl::Status Finish(base::Deadline deadline, absl::FunctionRef<absl::Status()> poll) override;
  void* native_handle() const override { return compute(); }
  void BeginRange(const char* name) override;
  void EndRange() override;

 private:
  // The parts that Create makes before there is a stream.
  struct Parts {
    CudaStreamHandle compute, aside, communication, copies;
    CompletionCounter completions;
    CudaEvent computed, communicated, copied, copies_allowed, forked, joined;
    std::unique_ptr<ClockMapping> clock;
  };
  static absl::StatusOr<Parts> CreateParts(int gpu);
  CudaStream(int gpu, Parts parts);

  absl::Status WaitWithDeadline(absl::FunctionRef<absl::StatusOr<bool>()> done,
                                base::Deadline deadline,
                                absl::FunctionRef<absl::Status()> poll) const;
  // Returns whether all streams have reached the end of what was issued.
  absl::StatusOr<bool> AllDone() const;

  const int gpu_;
  const CudaStreamHandle compute_, aside_, communication_, copies_;
  const CompletionCounter completions_;
  // The ends of the streams, as of the last Finish.
  const CudaEvent computed_, communicated_, copied_;
  const CudaEvent copies_allowed_;
  const CudaEvent forked_, joined_;  // between compute_ and aside_
  bool is_aside_ = false;            // an operation is issuing to aside_
  bool has_aside_ = false;           // since the last JoinAside
  bool copies_ahead_ = false;        // since the last Finish
  const std::unique_ptr<ClockMapping> clock_;
  JobQueue queue_;  // last: its thread starts when everything else exists, and ends first
};

// Returns the CUDA stream: every stream that reaches a CUDA operation is one.
inline CudaStream& AsCuda(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_STREAM_H_
