#include "kernels/cuda/products/measure_matmul.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/products/measure_matmul_kernels.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

constexpr float kSampleMs = 1.0F;
// Of a sample. The host issues the shortest products about as slowly as a GPU computes them, so
// that more would not tell more.
constexpr float kMaxRuns = 16.0F;
constexpr size_t kSamples = 5;
// Candidates of which so many samples are taken: those that are fastest in one sample.
constexpr size_t kFinalists = 4;

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

struct Range {
  void* begin = nullptr;
  int64_t bytes = 0;
};

// What a product writes: columns, and no gaps between them.
struct Written {
  void* begin = nullptr;
  StoredMatrix matrix;
};

// Where a product finds what it needs.
struct Places {
  MatmulPlan::Operands operands;
  Range results;                 // all that is written, and gaps; whole words
  std::vector<Written> written;  // without the gaps
  std::byte* workspace = nullptr;
  unsigned long long* fingerprint = nullptr;
};

Places Arrange(const MatmulPlan& plan, const Followed& followed, Layout& layout) {
  const Product& product = plan.product();
  const Epilogue epilogue = followed.operands_of.epilogue;
  const bool is_fused = product.epilogue == epilogue;
  Places places;
  MatmulPlan::Operands& operands = places.operands;
  operands.a = layout.Take(product.a().bytes());
  operands.b = layout.Take(product.b().bytes());
  operands.bias = layout.Take(product.m * SizeOf(product.result_type));
  // A result of what follows is no result of the product.
  const auto take_aux = [&] {
    if (epilogue != Epilogue::kGeluAuxBias) return;
    operands.aux = layout.Take(product.d().bytes());
    if (is_fused) places.written.push_back({operands.aux, product.d()});
  };
  if (!is_fused) take_aux();
  const int64_t before_bytes = layout.used_bytes();
  operands.d = layout.Take(product.d().bytes());
  places.written.push_back({operands.d, product.d()});
  if (is_fused) take_aux();
  places.results = {operands.d, layout.used_bytes() - before_bytes};
  places.workspace = layout.Take(plan.workspace_bytes());
  places.fingerprint =
      reinterpret_cast<unsigned long long*>(layout.Take(sizeof(*places.fingerprint)));
  return places;
}

// Where a product can run by itself: a stream, and memory for all its operands.
class Bench {
 public:
  // `followed` outlives it.
  static absl::StatusOr<Bench> Create(int gpu, const MatmulPlan& plan, const Followed& followed);

  // Milliseconds of a run with what follows it: the median of `samples`. Unimplemented if the
  // library does not run the algorithm in use, or if it does not repeat its bits; other errors are
  // the GPU's.
  absl::StatusOr<float> Measure(const MatmulPlan& plan, size_t samples) const;

 private:
  struct Parts {
    CudaStreamHandle stream;
    DeviceMemory memory;
    PinnedMemory fingerprint;
    CudaEvent begin, end;
  };

  Bench(Parts parts, const Places& places, const Followed& followed)
      : parts_(std::move(parts)), places_(places), followed_(&followed) {}

  absl::Status Fill(const Range& range, int byte) const;
  absl::Status Fill(const Written& written, int byte) const;
  absl::Status FillOperands(const Product& product) const;
  absl::Status Run(const MatmulPlan& plan) const;
  // Of the results of one run, before which they and the workspace are full of bytes `filling`.
  absl::StatusOr<uint64_t> FingerprintOfRun(const MatmulPlan& plan, int filling) const;
  // Milliseconds of each of `runs` that follow one another at once.
  absl::StatusOr<float> Time(const MatmulPlan& plan, int runs) const;
  absl::Status Finish() const {
    return CudaStatus(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }
  cudaStream_t stream() const { return parts_.stream.get(); }

  Parts parts_;
  Places places_;
  const Followed* followed_;
};

absl::StatusOr<Bench> Bench::Create(int gpu, const MatmulPlan& plan, const Followed& followed) {
  Layout sizes(nullptr);
  Arrange(plan, followed, sizes);
  ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(gpu, sizes.used_bytes()));
  ASSIGN_OR_RETURN(PinnedMemory fingerprint, PinnedMemory::Allocate(gpu, sizeof(uint64_t)));
  ASSIGN_OR_RETURN(CudaStreamHandle stream,
                   CudaStreamHandle::Create(gpu, CudaStreamHandle::Priority::kNormal));
  ASSIGN_OR_RETURN(CudaEvent begin, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
  ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
  Layout layout(memory.data());
  const Places places = Arrange(plan, followed, layout);
  const Range all = {memory.data(), layout.used_bytes()};
  Bench bench({.stream = std::move(stream),
               .memory = std::move(memory),
               .fingerprint = std::move(fingerprint),
               .begin = std::move(begin),
               .end = std::move(end)},
              places, followed);
  RETURN_IF_ERROR(bench.Fill(all, 0));
  RETURN_IF_ERROR(bench.FillOperands(followed.operands_of));
  return bench;
}

absl::Status Bench::Fill(const Range& range, int byte) const {
  return CudaStatus(cudaMemsetAsync(range.begin, byte, static_cast<size_t>(range.bytes), stream()),
                    "cudaMemsetAsync");
}

absl::Status Bench::Fill(const Written& written, int byte) const {
  const StoredMatrix& matrix = written.matrix;
  return CudaStatus(cudaMemset2DAsync(written.begin, static_cast<size_t>(matrix.leading_bytes()),
                                      byte, static_cast<size_t>(matrix.row_bytes()),
                                      static_cast<size_t>(matrix.columns), stream()),
                    "cudaMemset2DAsync");
}

// In the range of a training: products of zeros draw less power, and run faster.
absl::Status Bench::FillOperands(const Product& product) const {
  const auto fill = [&](const void* operand, int64_t bytes, DType type, uint32_t seed) {
    return CudaStatus(LaunchFillUniform(stream(), ElementTypeOf(type), bytes / SizeOf(type), seed,
                                        const_cast<void*>(operand)),
                      "LaunchFillUniform");
  };
  const MatmulPlan::Operands& operands = places_.operands;
  RETURN_IF_ERROR(fill(operands.a, product.a().bytes(), product.operand_type, 1));
  RETURN_IF_ERROR(fill(operands.b, product.b().bytes(), product.operand_type, 2));
  return fill(operands.bias, product.m * SizeOf(product.result_type), product.result_type, 3);
}

absl::Status Bench::Run(const MatmulPlan& plan) const {
  const absl::Status status = plan.Run(stream(), places_.operands, places_.workspace);
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  // The library reports errors of the GPU as its own: only the GPU knows.
  static_cast<void>(cudaGetLastError());
  RETURN_IF_ERROR(Finish());
  return absl::UnimplementedError(status.message());
}

absl::StatusOr<uint64_t> Bench::FingerprintOfRun(const MatmulPlan& plan, int filling) const {
  for (const Written& result : places_.written) RETURN_IF_ERROR(Fill(result, filling));
  RETURN_IF_ERROR(Fill(Range{places_.workspace, plan.workspace_bytes()}, filling));
  RETURN_IF_ERROR(Fill(Range{places_.fingerprint, sizeof(uint64_t)}, 0));
  RETURN_IF_ERROR(Run(plan));
  constexpr int64_t kWordBytes = sizeof(uint32_t);
  RETURN_IF_ERROR(CudaStatus(
      LaunchFingerprint(stream(), places_.results.bytes / kWordBytes,
                        static_cast<const uint32_t*>(places_.results.begin), places_.fingerprint),
      "LaunchFingerprint"));
  RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(parts_.fingerprint.data(), places_.fingerprint,
                                             sizeof(uint64_t), cudaMemcpyDeviceToHost, stream()),
                             "cudaMemcpyAsync"));
  RETURN_IF_ERROR(Finish());
  uint64_t fingerprint = 0;
  std::memcpy(&fingerprint, parts_.fingerprint.data(), sizeof(fingerprint));
  return fingerprint;
}

absl::StatusOr<float> Bench::Time(const MatmulPlan& plan, int runs) const {
  RETURN_IF_ERROR(parts_.begin.Record(stream()));
  for (int run = 0; run < runs; ++run) {
    RETURN_IF_ERROR(Run(plan));
    if (!followed_->follow) continue;
    RETURN_IF_ERROR(followed_->follow(stream(), places_.operands));
  }
  RETURN_IF_ERROR(parts_.end.Record(stream()));
  RETURN_IF_ERROR(Finish());
  float milliseconds = 0.0F;
  RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, parts_.begin.get(), parts_.end.get()),
                 "cudaEventElapsedTime"));
  return milliseconds / static_cast<float>(runs);
}

absl::StatusOr<float> Bench::Measure(const MatmulPlan& plan, size_t samples) const {
  // These also load the kernel.
  ASSIGN_OR_RETURN(const uint64_t once, FingerprintOfRun(plan, 0x00));
  ASSIGN_OR_RETURN(const uint64_t again, FingerprintOfRun(plan, 0xFF));
  if (once != again) {
    return absl::UnimplementedError(absl::StrCat("algorithm ", plan.algorithm().ToString(),
                                                 ": its bits differ from run to run"));
  }
  ASSIGN_OR_RETURN(const float estimate, Time(plan, 1));
  const float wanted = kSampleMs / std::max(estimate, kSampleMs / kMaxRuns);
  const int runs = static_cast<int>(std::ceil(std::min(wanted, kMaxRuns)));
  std::vector<float> times(samples);
  for (float& time : times) {
    ASSIGN_OR_RETURN(time, Time(plan, runs));
  }
  const auto median = times.begin() + static_cast<std::ptrdiff_t>(samples / 2);
  std::nth_element(times.begin(), median, times.end());
  return *median;
}

// Returns those of `candidates` that can be used, in their order. `refusal` becomes the last reason
// why one cannot.
absl::StatusOr<std::vector<MeasuredAlgorithm>> MeasureEach(
    const Bench& bench, MatmulPlan& plan,
    absl::Span<const MatmulPlan::CandidateAlgorithm> candidates, size_t samples,
    absl::Status& refusal) {
  std::vector<MeasuredAlgorithm> measured;
  for (const MatmulPlan::CandidateAlgorithm& candidate : candidates) {
    plan.Use(candidate);
    const absl::StatusOr<float> milliseconds = bench.Measure(plan, samples);
    if (absl::IsUnimplemented(milliseconds.status())) {
      refusal = milliseconds.status();
      continue;
    }
    RETURN_IF_ERROR(milliseconds.status());
    measured.push_back({candidate, *milliseconds});
  }
  return measured;
}

// Returns the candidates that may turn out to be the fastest, in their order. The first one always
// stays, since it is used unless another is clearly faster.
std::vector<MatmulPlan::CandidateAlgorithm> ChooseFinalists(
    absl::Span<const MeasuredAlgorithm> measured) {
  std::vector<size_t> places(measured.size());
  std::iota(places.begin(), places.end(), size_t{0});
  if (places.size() > kFinalists) {
    std::stable_sort(places.begin() + 1, places.end(), [&](size_t one, size_t other) {
      return measured[one].milliseconds < measured[other].milliseconds;
    });
    places.resize(kFinalists);
    std::sort(places.begin(), places.end());
  }
  std::vector<MatmulPlan::CandidateAlgorithm> finalists;
  for (const size_t place : places) finalists.push_back(measured[place].candidate);
  return finalists;
}

}  // namespace

bool IsFaster(float milliseconds, float least_before) {
  constexpr float kWorthIt = 0.98F;
  return milliseconds <= least_before * kWorthIt;
}

absl::StatusOr<MeasuredAlgorithm> FindFastest(
    int gpu, MatmulPlan& plan, absl::Span<const MatmulPlan::CandidateAlgorithm> candidates,
    const Followed& followed) {
  STAGECOACH_CHECK(!candidates.empty(), "nothing to choose from");
  ASSIGN_OR_RETURN(const Bench bench, Bench::Create(gpu, plan, followed));
  absl::Status refusal;
  ASSIGN_OR_RETURN(const std::vector<MeasuredAlgorithm> measured,
                   MeasureEach(bench, plan, candidates, /*samples=*/1, refusal));
  ASSIGN_OR_RETURN(const std::vector<MeasuredAlgorithm> finalists,
                   MeasureEach(bench, plan, ChooseFinalists(measured), kSamples, refusal));
  if (finalists.empty()) {
    return base::Annotate(refusal, "none of the library's algorithms can be used; the last one");
  }
  MeasuredAlgorithm fastest = finalists.front();
  for (const MeasuredAlgorithm& finalist : finalists) {
    if (IsFaster(finalist.milliseconds, fastest.milliseconds)) fastest = finalist;
  }
  return fastest;
}

}  // namespace stagecoach::kernels
