#include "kernels/cuda/tuning/measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/measure_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr float kSampleMs = 1.0F;
// The most runs of a sample. The host issues the shortest runs about as slowly as a GPU computes
// them, so that more runs would not tell more.
constexpr float kMaxRuns = 16.0F;
constexpr size_t kSamples = 5;
// The number of candidates that are sampled repeatedly: those that are fastest in one sample.
constexpr size_t kFinalists = 4;

constexpr double kMostDeviation = 0.05;  // of results that agree, by the norm

constexpr int64_t kSummaryBytes =
    int64_t{sizeof(uint64_t)} +
    static_cast<int64_t>(kMostResults * sizeof(double)) * kMostSketchSums;

int64_t ElementsOf(const Area& area, int64_t bytes) {
  return bytes / (area.type == ElementType::kFloat32 ? 4 : 2);
}

// NaN agrees with nothing.
bool Agree(const std::vector<double>& one, const std::vector<double>& other) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference += (one[i] - other[i]) * (one[i] - other[i]);
    norm += one[i] * one[i];
  }
  return difference <= kMostDeviation * kMostDeviation * norm;
}

// Returns the candidates that may turn out to be the fastest, in their order. The first one always
// stays, since it is used unless another is clearly faster.
std::vector<size_t> ChooseFinalists(std::vector<Fastest> measured) {
  if (measured.size() > kFinalists) {
    std::stable_sort(measured.begin() + 1, measured.end(),
                     [](const Fastest& one, const Fastest& other) {
                       return one.milliseconds < other.milliseconds;
                     });
    measured.resize(kFinalists);
  }
  std::vector<size_t> finalists;
  for (const Fastest& each : measured) finalists.push_back(each.candidate);
  std::sort(finalists.begin(), finalists.end());
  return finalists;
}

}  // namespace

bool IsFaster(float milliseconds, float least_before) {
  constexpr float kWorthIt = 0.98F;
  return milliseconds <= least_before * kWorthIt;
}

absl::StatusOr<TuningBench> TuningBench::Create(int gpu, int64_t bytes) {
  Layout sizes(nullptr);
  sizes.Take(bytes);
  const int64_t summary_at = sizes.used_bytes();
  sizes.Take(kSummaryBytes);
  ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(gpu, sizes.used_bytes()));
  ASSIGN_OR_RETURN(PinnedMemory summary_of_host, PinnedMemory::Allocate(gpu, kSummaryBytes));
  ASSIGN_OR_RETURN(CudaStreamHandle stream,
                   CudaStreamHandle::Create(gpu, CudaStreamHandle::Priority::kNormal));
  ASSIGN_OR_RETURN(CudaEvent begin, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
  ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
  const Area all = {
      .begin = memory.data(), .row_bytes = sizes.used_bytes(), .pitch_bytes = sizes.used_bytes()};
  std::byte* const summary = memory.data() + summary_at;
  TuningBench bench({.stream = std::move(stream),
                     .memory = std::move(memory),
                     .summary = summary,
                     .summary_of_host = std::move(summary_of_host),
                     .begin = std::move(begin),
                     .end = std::move(end)});
  RETURN_IF_ERROR(bench.Fill(all, 0));
  return bench;
}

absl::Status TuningBench::FillUniform(void* operand, int64_t elements, ElementType type,
                                      uint32_t seed) const {
  return CudaStatus(LaunchFillUniform(stream(), type, elements, seed, operand),
                    "LaunchFillUniform");
}

absl::Status TuningBench::Fill(const Area& area, int byte) const {
  if (area.rows == 1) {
    return CudaStatus(
        cudaMemsetAsync(area.begin, byte, static_cast<size_t>(area.row_bytes), stream()),
        "cudaMemsetAsync");
  }
  return CudaStatus(cudaMemset2DAsync(area.begin, static_cast<size_t>(area.pitch_bytes), byte,
                                      static_cast<size_t>(area.row_bytes),
                                      static_cast<size_t>(area.rows), stream()),
                    "cudaMemset2DAsync");
}

absl::Status TuningBench::Run(const Trial& trial, size_t candidate) const {
  const absl::Status status = trial.run(stream(), candidate);
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  // Libraries report errors of the GPU as their own; only the GPU can tell the difference.
  static_cast<void>(cudaGetLastError());
  RETURN_IF_ERROR(Finish());
  return absl::UnimplementedError(status.message());
}

absl::StatusOr<TuningBench::Summary> TuningBench::SummaryOfRun(const Trial& trial, size_t candidate,
                                                               int filling) const {
  STAGECOACH_CHECK(trial.results.size() <= kMostResults, "too many results");
  for (const Area& result : trial.results) RETURN_IF_ERROR(Fill(result, filling));
  if (trial.workspace.row_bytes > 0) RETURN_IF_ERROR(Fill(trial.workspace, filling));
  RETURN_IF_ERROR(Fill({.begin = parts_.summary, .row_bytes = kSummaryBytes}, 0));
  RETURN_IF_ERROR(Run(trial, candidate));
  auto* const fingerprint = reinterpret_cast<unsigned long long*>(parts_.summary);
  auto* sums = reinterpret_cast<double*>(parts_.summary + sizeof(uint64_t));
  Summary summary;
  for (const Area& result : trial.results) {
    constexpr int64_t kWordBytes = sizeof(uint32_t);
    const int64_t bytes = (result.rows - 1) * result.pitch_bytes + result.row_bytes;
    RETURN_IF_ERROR(
        CudaStatus(LaunchFingerprint(stream(), (bytes + kWordBytes - 1) / kWordBytes,
                                     static_cast<const uint32_t*>(result.begin), fingerprint),
                   "LaunchFingerprint"));
    const SketchArguments sketch = {.rows = result.rows,
                                    .columns = ElementsOf(result, result.row_bytes),
                                    .pitch = ElementsOf(result, result.pitch_bytes),
                                    .matrix = result.begin,
                                    .sums = sums};
    RETURN_IF_ERROR(CudaStatus(LaunchSketch(stream(), result.type, sketch), "LaunchSketch"));
    const int64_t count = SketchSums(sketch.rows * sketch.columns);
    summary.sketches.emplace_back(static_cast<size_t>(count));
    sums += count;
  }
  const auto* const from = reinterpret_cast<std::byte*>(sums);
  const auto bytes = static_cast<size_t>(from - parts_.summary);
  RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(parts_.summary_of_host.data(), parts_.summary, bytes,
                                             cudaMemcpyDeviceToHost, stream()),
                             "cudaMemcpyAsync"));
  RETURN_IF_ERROR(Finish());
  const std::byte* next = parts_.summary_of_host.data();
  const auto take = [&](void* to, size_t size) {
    std::memcpy(to, next, size);
    next += size;
  };
  take(&summary.fingerprint, sizeof(summary.fingerprint));
  for (std::vector<double>& sketch : summary.sketches) {
    take(sketch.data(), sketch.size() * sizeof(double));
  }
  return summary;
}

absl::StatusOr<float> TuningBench::Time(const Trial& trial, size_t candidate, int runs) const {
  RETURN_IF_ERROR(parts_.begin.Record(stream()));
  for (int run = 0; run < runs; ++run) {
    RETURN_IF_ERROR(Run(trial, candidate));
    if (trial.follow) RETURN_IF_ERROR(trial.follow(stream()));
  }
  RETURN_IF_ERROR(parts_.end.Record(stream()));
  RETURN_IF_ERROR(Finish());
  float milliseconds = 0.0F;
  RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, parts_.begin.get(), parts_.end.get()),
                 "cudaEventElapsedTime"));
  return milliseconds / static_cast<float>(runs);
}

absl::StatusOr<float> TuningBench::Measure(const Trial& trial, size_t candidate, size_t samples,
                                           Summary& expected) const {
  // These calls also load the kernel.
  ASSIGN_OR_RETURN(const Summary once, SummaryOfRun(trial, candidate, 0x00));
  ASSIGN_OR_RETURN(const Summary again, SummaryOfRun(trial, candidate, 0xFF));
  if (once.fingerprint != again.fingerprint) {
    return absl::UnimplementedError("its bits differ from run to run");
  }
  if (expected.sketches.empty()) expected = once;
  for (size_t i = 0; i < once.sketches.size(); ++i) {
    if (Agree(expected.sketches[i], once.sketches[i])) continue;
    return absl::UnimplementedError("it computes other numbers than the others");
  }
  ASSIGN_OR_RETURN(const float estimate, Time(trial, candidate, 1));
  const float wanted = kSampleMs / std::max(estimate, kSampleMs / kMaxRuns);
  const int runs = static_cast<int>(std::ceil(std::min(wanted, kMaxRuns)));
  std::vector<float> times(samples);
  for (float& time : times) {
    ASSIGN_OR_RETURN(time, Time(trial, candidate, runs));
  }
  const auto median = times.begin() + static_cast<std::ptrdiff_t>(samples / 2);
  std::nth_element(times.begin(), median, times.end());
  return *median;
}

absl::StatusOr<std::vector<Fastest>> TuningBench::MeasureEach(const Trial& trial,
                                                              const std::vector<size_t>& candidates,
                                                              size_t samples, Summary& expected,
                                                              absl::Status& refusal) const {
  std::vector<Fastest> measured;
  for (const size_t candidate : candidates) {
    const absl::StatusOr<float> milliseconds = Measure(trial, candidate, samples, expected);
    if (absl::IsUnimplemented(milliseconds.status())) {
      refusal = milliseconds.status();
      continue;
    }
    RETURN_IF_ERROR(milliseconds.status());
    measured.push_back({candidate, *milliseconds});
  }
  return measured;
}

absl::StatusOr<Fastest> TuningBench::FindFastest(const Trial& trial) const {
  STAGECOACH_CHECK(trial.candidates > 0, "nothing to choose from");
  std::vector<size_t> all(trial.candidates);
  std::iota(all.begin(), all.end(), size_t{0});
  absl::Status refusal;
  Summary expected;
  ASSIGN_OR_RETURN(std::vector<Fastest> measured,
                   MeasureEach(trial, all, /*samples=*/1, expected, refusal));
  ASSIGN_OR_RETURN(
      const std::vector<Fastest> finalists,
      MeasureEach(trial, ChooseFinalists(std::move(measured)), kSamples, expected, refusal));
  if (finalists.empty()) {
    return base::Annotate(refusal, "none of the candidates can be used; the last one");
  }
  Fastest fastest = finalists.front();
  for (const Fastest& finalist : finalists) {
    if (IsFaster(finalist.milliseconds, fastest.milliseconds)) fastest = finalist;
  }
  return fastest;
}

absl::Status TuningBench::Finish() const {
  return CudaStatus(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

}  // namespace stagecoach::kernels
