#ifndef STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_H_
#define STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/element_type.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/runtime/handles.h"

// Finds the fastest of several ways to compute by trying them.
namespace stagecoach::kernels {

// Parts of one allocation, each of AlignScratch bytes. Only measures them if there is no memory
// yet.
class Layout {
 public:
  explicit Layout(std::byte* memory) : memory_(memory) {}
  std::byte* Take(int64_t bytes) {
    const int64_t begin = std::exchange(used_bytes_, used_bytes_ + AlignScratch(bytes));
    return memory_ == nullptr ? nullptr : memory_ + begin;
  }
  int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* const memory_;
  int64_t used_bytes_ = 0;
};

// Rows of bytes, each `pitch_bytes` after the previous one, starting at a multiple of four.
struct Area {
  void* begin = nullptr;
  int64_t row_bytes = 0, pitch_bytes = 0, rows = 1;
  ElementType type = ElementType::kFloat32;  // of results
};

// The candidates to try.
struct Trial {
  size_t candidates = 1;
  // Issues a run of one candidate.
  std::function<absl::Status(cudaStream_t stream, size_t candidate)> run;
  // Timed with each run; empty: nothing follows.
  std::function<absl::Status(cudaStream_t stream)> follow;
  // The areas that a run writes, at most kMostResults; the gaps between rows stay untouched. The
  // last word of each row may extend beyond it.
  std::vector<Area> results;
  Area workspace = {};  // scratch that a run may use
};

struct Fastest {
  size_t candidate = 0;
  float milliseconds = 0.0F;  // of a run and the work that follows it
};

inline constexpr size_t kMostResults = 3;

// Returns whether a way to compute that comes later in an order of preference counts as faster:
// times vary, so it must take 2 % less.
bool IsFaster(float milliseconds, float least_before);

// A place where candidates can run by themselves: a stream, and memory for all their operands.
class TuningBench {
 public:
  // Allocates `bytes` of memory, which are zeroed.
  static absl::StatusOr<TuningBench> Create(int gpu, int64_t bytes);

  std::byte* memory() const { return parts_.memory.data(); }
  cudaStream_t stream() const { return parts_.stream.get(); }

  // Fills an operand with numbers in [-1, 1), a range typical of training: products of zeros draw
  // less power, and run faster.
  absl::Status FillUniform(void* operand, int64_t elements, ElementType type, uint32_t seed) const;

  // Returns the candidate to use: of those that run, produce the same bits when they run again on
  // other contents of results and workspace, and agree with the first that does, the one that takes
  // the least time. Candidates are in an order of preference (IsFaster). Results agree if each area
  // is within 5 % of the other by the norm of the difference: what rounds otherwise stays far below
  // that, and what computes something else does not.
  //
  // A sample consists of as many runs, up to 16, as take about a millisecond. One sample is taken
  // of every candidate, and then the median of five of the first candidate and of the three others
  // that were fastest, each time after three other runs. So n candidates are measured in about n +
  // 20 ms, or in 4 n + 32 times their own time if that is more.
  //
  // Waits for the GPU. A candidate whose run fails is skipped; an error of the GPU ends the search.
  // Unimplemented, with the last reason, if no candidate is left.
  absl::StatusOr<Fastest> FindFastest(const Trial& trial) const;

 private:
  struct Parts {
    CudaStreamHandle stream;
    DeviceMemory memory;
    // At the end of the memory: a fingerprint, and room for the sketches of all results
    // (measure_kernels.h). The host has a copy.
    std::byte* summary;
    PinnedMemory summary_of_host;
    CudaEvent begin, end;
  };
  // The results of a run.
  struct Summary {
    uint64_t fingerprint = 0;
    std::vector<std::vector<double>> sketches;  // of each area
  };

  explicit TuningBench(Parts parts) : parts_(std::move(parts)) {}

  // Returns the median of `samples`, in milliseconds. Unimplemented if the candidate does not run,
  // does not repeat its bits, or does not agree with `expected`, which is set if it is empty; other
  // errors are the GPU's.
  absl::StatusOr<float> Measure(const Trial& trial, size_t candidate, size_t samples,
                                Summary& expected) const;
  // Returns those of `candidates` that can be used, in their order. Sets `refusal` to the last
  // reason why one cannot.
  absl::StatusOr<std::vector<Fastest>> MeasureEach(const Trial& trial,
                                                   const std::vector<size_t>& candidates,
                                                   size_t samples, Summary& expected,
                                                   absl::Status& refusal) const;
  absl::Status Fill(const Area& area, int byte) const;
  absl::Status Run(const Trial& trial, size_t candidate) const;
  // Summarizes the results of one run, before which they and the workspace are filled with bytes
  // `filling`.
  absl::StatusOr<Summary> SummaryOfRun(const Trial& trial, size_t candidate, int filling) const;
  // Returns the time of each of `runs` back-to-back runs, in milliseconds.
  absl::StatusOr<float> Time(const Trial& trial, size_t candidate, int runs) const;
  absl::Status Finish() const;

  Parts parts_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_H_
