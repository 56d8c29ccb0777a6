#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_TIMELINE_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_TIMELINE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

class CudaStream;

// Tells when events of one GPU were reached, on the clock of this process. A GPU tells only the
// time between two of its events, in milliseconds as a float. So an event with known host time is
// kept, and is replaced now and then, because the two clocks drift apart and a float has 24 bits.
// Thread-safe.
class ClockMapping {
 public:
  // Records on `stream`, a stream of `gpu`, which is idle now and at each Refresh, and outlives the
  // result.
  static absl::StatusOr<std::unique_ptr<ClockMapping>> Create(int gpu, cudaStream_t stream);

  // Pairs the clocks anew if the last pairing is older than kMaxAge; this waits some microseconds
  // for the GPU.
  static constexpr std::chrono::seconds kMaxAge{1};
  absl::Status Refresh();

  // Returns the time of an event with timing, of the same GPU, that was reached and was recorded
  // after the last pairing but one. Accurate to within some ten microseconds.
  absl::StatusOr<std::chrono::steady_clock::time_point> At(const CudaEvent& event) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Pair {
    CudaEvent event;
    Clock::time_point time;
  };

  ClockMapping(int gpu, cudaStream_t stream, Pair first, Pair second);
  static absl::Status Measure(int gpu, cudaStream_t stream, Pair& pair);

  const int gpu_;
  const cudaStream_t stream_;
  mutable base::Mutex mutex_;
  // The last two pairings: the reference of an event must come before it, and the end of a step,
  // where clocks are paired, comes after its events.
  std::array<Pair, 2> pairs_ ABSL_GUARDED_BY(mutex_);
  int older_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Moments in the order of a CUDA device's compute stream.
class CudaTimeline final : public Timeline {
 public:
  // `stream` outlives the result.
  static absl::StatusOr<std::unique_ptr<Timeline>> Create(const CudaStream& stream, int slots);

  absl::Status Mark(int slot) override;
  absl::StatusOr<std::chrono::steady_clock::time_point> At(int slot) const override;
  absl::Status Wait(int slot) const override;

 private:
  CudaTimeline(const CudaStream& stream, std::vector<CudaEvent> events);

  const CudaStream& stream_;
  const std::vector<CudaEvent> events_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_CUDA_TIMELINE_H_
