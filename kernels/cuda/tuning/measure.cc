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
  const int64_t fingerprint_at = sizes.used_bytes();
  sizes.Take(sizeof(uint64_t));
  ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(gpu, sizes.used_bytes()));
  ASSIGN_OR_RETURN(PinnedMemory fingerprint, PinnedMemory::Allocate(gpu, sizeof(uint64_t)));
  ASSIGN_OR_RETURN(CudaStreamHandle stream,
                   CudaStreamHandle::Create(gpu, CudaStreamHandle::Priority::kNormal));
  ASSIGN_OR_RETURN(CudaEvent begin, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
  ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(gpu, CudaEvent::Timing::kOn));
  const Area all = {
      .begin = memory.data(), .row_bytes = sizes.used_bytes(), .pitch_bytes = sizes.used_bytes()};
  auto* const on_device = reinterpret_cast<unsigned long long*>(memory.data() + fingerprint_at);
  TuningBench bench({.stream = std::move(stream),
                     .memory = std::move(memory),
                     .fingerprint = on_device,
                     .fingerprint_of_host = std::move(fingerprint),
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

absl::StatusOr<uint64_t> TuningBench::FingerprintOfRun(const Trial& trial, size_t candidate,
                                                       int filling) const {
  for (const Area& result : trial.results) RETURN_IF_ERROR(Fill(result, filling));
  if (trial.workspace.row_bytes > 0) RETURN_IF_ERROR(Fill(trial.workspace, filling));
  RETURN_IF_ERROR(Fill({.begin = parts_.fingerprint, .row_bytes = sizeof(uint64_t)}, 0));
  RETURN_IF_ERROR(Run(trial, candidate));
  for (const Area& result : trial.results) {
    constexpr int64_t kWordBytes = sizeof(uint32_t);
    const int64_t bytes = (result.rows - 1) * result.pitch_bytes + result.row_bytes;
    RETURN_IF_ERROR(CudaStatus(
        LaunchFingerprint(stream(), (bytes + kWordBytes - 1) / kWordBytes,
                          static_cast<const uint32_t*>(result.begin), parts_.fingerprint),
        "LaunchFingerprint"));
  }
  RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(parts_.fingerprint_of_host.data(), parts_.fingerprint,
                                             sizeof(uint64_t), cudaMemcpyDeviceToHost, stream()),
                             "cudaMemcpyAsync"));
  RETURN_IF_ERROR(Finish());
  uint64_t fingerprint = 0;
  std::memcpy(&fingerprint, parts_.fingerprint_of_host.data(), sizeof(fingerprint));
  return fingerprint;
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

absl::StatusOr<float> TuningBench::Measure(const Trial& trial, size_t candidate,
                                           size_t samples) const {
  // These calls also load the kernel.
  ASSIGN_OR_RETURN(const uint64_t once, FingerprintOfRun(trial, candidate, 0x00));
  ASSIGN_OR_RETURN(const uint64_t again, FingerprintOfRun(trial, candidate, 0xFF));
  if (once != again) return absl::UnimplementedError("its bits differ from run to run");
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
                                                              size_t samples,
                                                              absl::Status& refusal) const {
  std::vector<Fastest> measured;
  for (const size_t candidate : candidates) {
    const absl::StatusOr<float> milliseconds = Measure(trial, candidate, samples);
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
  ASSIGN_OR_RETURN(std::vector<Fastest> measured, MeasureEach(trial, all, /*samples=*/1, refusal));
  ASSIGN_OR_RETURN(const std::vector<Fastest> finalists,
                   MeasureEach(trial, ChooseFinalists(std::move(measured)), kSamples, refusal));
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
