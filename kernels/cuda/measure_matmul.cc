#include "kernels/cuda/measure_matmul.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/status.h"

namespace stagecoach::kernels {
namespace {

constexpr int kRuns = 5;

// Where a product can run by itself: a stream, and memory for all its operands.
class Bench {
 public:
  static absl::StatusOr<Bench> Create(int gpu, const MatmulPlan& plan);

  // Milliseconds; the median.
  absl::StatusOr<float> Measure(const MatmulPlan& plan) const;

 private:
  struct Run {
    CudaEvent begin, end;
  };

  Bench(CudaStreamHandle stream, DeviceMemory memory, std::vector<Run> runs)
      : stream_(std::move(stream)), memory_(std::move(memory)), runs_(std::move(runs)) {}

  CudaStreamHandle stream_;
  DeviceMemory memory_;
  std::vector<Run> runs_;
  MatmulPlan::Operands operands_;
  std::byte* workspace_ = nullptr;
};

// Parts of one allocation. Measures them if there is no memory yet.
class Layout {
 public:
  explicit Layout(std::byte* memory) : memory_(memory) {}
  std::byte* Take(int64_t bytes) {
    constexpr int64_t kGranule = 256;
    const int64_t begin =
        std::exchange(used_bytes_, used_bytes_ + (bytes + kGranule - 1) / kGranule * kGranule);
    return memory_ == nullptr ? nullptr : memory_ + begin;
  }
  int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* const memory_;
  int64_t used_bytes_ = 0;
};

std::pair<MatmulPlan::Operands, std::byte*> Arrange(const MatmulPlan& plan, Layout& layout) {
  const Product& product = plan.product();
  const int64_t bias_bytes = product.m * SizeOf(product.result_type);
  MatmulPlan::Operands operands;
  operands.a = layout.Take(product.a_bytes());
  operands.b = layout.Take(product.b_bytes());
  operands.d = layout.Take(product.d_bytes());
  operands.bias = layout.Take(bias_bytes);
  operands.bias_gradient = layout.Take(bias_bytes);
  if (product.epilogue == Epilogue::kGeluAuxBias) operands.aux = layout.Take(product.d_bytes());
  return {operands, layout.Take(plan.workspace_bytes())};
}

absl::StatusOr<Bench> Bench::Create(int gpu, const MatmulPlan& plan) {
  Layout sizes(nullptr);
  Arrange(plan, sizes);
  ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(gpu, sizes.used_bytes()));
  ASSIGN_OR_RETURN(CudaStreamHandle stream,
                   CudaStreamHandle::Create(gpu, CudaStreamHandle::Priority::kNormal));
  std::vector<Run> runs;
  for (int i = 0; i < kRuns; ++i) {
    ASSIGN_OR_RETURN(CudaEvent begin, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
    ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
    runs.push_back({std::move(begin), std::move(end)});
  }
  Bench bench(std::move(stream), std::move(memory), std::move(runs));
  Layout layout(bench.memory_.data());
  std::tie(bench.operands_, bench.workspace_) = Arrange(plan, layout);
  // Small numbers (0.0115) in either type: products of zeros draw less power, and run faster, than
  // those of a training.
  constexpr int kFill = 0x3C;
  RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(bench.memory_.data(), kFill,
                                 static_cast<size_t>(layout.used_bytes()), bench.stream_.get()),
                 "cudaMemsetAsync"));
  return bench;
}

absl::StatusOr<float> Bench::Measure(const MatmulPlan& plan) const {
  const cudaStream_t stream = stream_.get();
  // The first run loads the kernel.
  RETURN_IF_ERROR(plan.Run(stream, operands_, workspace_));
  for (const Run& run : runs_) {
    RETURN_IF_ERROR(run.begin.Record(stream));
    RETURN_IF_ERROR(plan.Run(stream, operands_, workspace_));
    RETURN_IF_ERROR(run.end.Record(stream));
  }
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  std::array<float, kRuns> milliseconds = {};
  for (size_t i = 0; i < runs_.size(); ++i) {
    RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds[i], runs_[i].begin.get(), runs_[i].end.get()),
                   "cudaEventElapsedTime"));
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kRuns / 2, milliseconds.end());
  return milliseconds[kRuns / 2];
}

}  // namespace

absl::StatusOr<MatmulPlan::Candidate> FindFastest(
    int gpu, MatmulPlan& plan, absl::Span<const MatmulPlan::Candidate> candidates) {
  STAGECOACH_CHECK(!candidates.empty(), "nothing to choose from");
  if (candidates.size() == 1) return candidates[0];
  ASSIGN_OR_RETURN(const Bench bench, Bench::Create(gpu, plan));
  std::optional<MatmulPlan::Candidate> fastest;
  float least = 0.0F;
  for (const MatmulPlan::Candidate& candidate : candidates) {
    plan.Use(candidate);
    const absl::StatusOr<float> milliseconds = bench.Measure(plan);
    if (absl::IsUnimplemented(milliseconds.status())) continue;
    RETURN_IF_ERROR(milliseconds.status());
    if (fastest.has_value() && *milliseconds >= least) continue;
    fastest = candidate;
    least = *milliseconds;
  }
  if (!fastest.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("none of the library's algorithms runs for ", plan.product().ToString()));
  }
  return *fastest;
}

}  // namespace stagecoach::kernels
