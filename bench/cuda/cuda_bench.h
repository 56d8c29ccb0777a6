#ifndef STAGECOACH_BENCH_CUDA_CUDA_BENCH_H_
#define STAGECOACH_BENCH_CUDA_CUDA_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "engine/stagecoach.h"
#include "engine/train/measure/device_timer.h"
#include "kernels/ops/attention.h"

namespace stagecoach::bench {

// What the parts of cuda_bench have in common. An error ends the program.

using engine::DeviceKind;
using engine::DeviceSpec;
using engine::Exchange;
using engine::Precision;
using kernels::DType;
using kernels::Shape;
using kernels::Stream;
using kernels::Tensor;

inline constexpr int64_t kFeatures = 784, kClasses = 10;

struct Sizes {
  int layers = 20;
  int64_t width = 2304;
  int64_t batch = 4096;
  std::vector<int64_t> micro_batch_rows = {512, 2048};  // for four stages
  int64_t norm_rows = 32768;
  std::vector<std::pair<int64_t, int64_t>> norms = {{16384, 2048}, {65536, 768}};
  std::pair<int64_t, int64_t> gates = {16384, 11264};
  int64_t positions = 32768;  // for attention with a cache
  int64_t copy_bytes = int64_t{1} << 30;
  std::vector<int64_t> head_rows = {8192, 11264};
  std::vector<int64_t> vocabularies = {50257, 50304};
  int64_t embedding_rows = 65536;
  int64_t token_width = 768;
  int generating_blocks = 12;
  int64_t context = 1024;
  std::vector<int64_t> generated_positions = {64, 1000};
  std::vector<std::pair<int64_t, int64_t>> quantized = {{4096, 4096}, {4096, 14336}, {14336, 4096}};
  int64_t quantized_weights = 32;  // of one extent, at most
  std::vector<kernels::AttentionShape> attention = {
      {.samples = 16, .positions = 1024, .heads = 12, .kv_heads = 12, .head_size = 64},
      {.samples = 4, .positions = 4096, .heads = 32, .kv_heads = 32, .head_size = 128}};
  int steps = 30;
  int repetitions = 20;
};

struct Settings {
  Sizes sizes;
  bool json = false;
  std::string tuning_file;
};

template <typename T>
T Value(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

DeviceSpec OnGpu(const Settings& settings, Precision precision, int devices = 1);

// A bound for a figure, and which side of it is good.
struct Target {
  enum Side : uint8_t { kNone, kAtLeast, kAtMost } side = kNone;
  double bound = 0.0;

  bool MetBy(double value) const { return side == kAtLeast ? value >= bound : value <= bound; }
  std::string ToString() const {
    return side == kNone ? "" : absl::StrCat(side == kAtLeast ? ">= " : "<= ", bound);
  }
};

// Prints a figure at once, so that it is seen even if the run is cut short. `id` names it for
// programs.
void Report(const Settings& settings, const std::string& id, const std::string& name, double value,
            const std::string& unit = "", const Target& target = {});

inline double Gigabytes(int64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

// Returns bytes per second, counting each byte read and each byte written.
double BenchCopy(const Settings& settings, engine::DeviceTimer& timer);

struct Moved {
  std::string id;
  std::string name;
  int64_t bytes;
  double seconds;
};
// Reports the rate, and its share of that of a copy.
void ReportMoved(const Settings& settings, double copy_rate, const Moved& moved);

// Returns a copy of `count` values on the device.
template <typename T>
T* Upload(engine::DeviceTimer& timer, const T* values, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  kernels::Device& device = timer.device();
  const kernels::HostBuffer host = Value(device.AllocateHost(bytes));
  std::memcpy(host.data(), values, static_cast<size_t>(bytes));
  std::byte* const to = Value(timer.Workspace(bytes));
  device.stream().Run([&] {
    STAGECOACH_CHECK_OK(device.stream().CopyFromHost(to, host.data(), bytes));
    STAGECOACH_CHECK_OK(
        device.stream().Finish(base::Deadline::Never(), [] { return absl::OkStatus(); }));
  });
  return reinterpret_cast<T*>(to);
}

// Measures what the head does with rows of logits, in place.
void BenchCrossEntropy(const Settings& settings, double copy_rate, engine::DeviceTimer& timer,
                       int64_t classes);  // tokens.cc

// The sections, each in a file of its name.
void BenchSteps(const Settings& settings);   // steps.cc
void BenchStages(const Settings& settings);  // steps.cc: four stages on one GPU
void BenchKernels(const Settings& settings);
void BenchTokens(const Settings& settings);
void BenchAttention(const Settings& settings);  // kernels.cc
void BenchGenerate(const Settings& settings);
void BenchQuantized(const Settings& settings);  // generate.cc

}  // namespace stagecoach::bench

#endif  // STAGECOACH_BENCH_CUDA_CUDA_BENCH_H_
