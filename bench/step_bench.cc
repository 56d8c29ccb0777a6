// Whole training steps of the default network (97.5 million parameters) on CPU devices of one core
// each, against what the parts cost alone in the same run. Prints a table; takes about two minutes
// on two cores.
//   build/release/bench/step_bench
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "engine/stagecoach.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/register_peak.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"

namespace stagecoach::bench {
namespace {

using namespace engine;  // NOLINT: a program of its own

constexpr int64_t kFeatures = 784, kClasses = 10, kWidth = 2304, kRows = 64;
constexpr int kLayers = 20, kHidden = kLayers - 2;

template <typename F>
double BestSeconds(int runs, F function) {
  double best = 1e30;
  for (int run = 0; run <= runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (run > 0) best = std::min(best, seconds.count());
  }
  return best;
}

template <typename T>
T Value(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

// Seconds of one step of the default network.
double StepSeconds(int stages, int micro_batches, const std::string& schedule, int runs) {
  const Model model = Value(DefaultNetwork(kFeatures, kClasses, kLayers, kWidth));
  const auto run = Value(PrepareRun(model, {.devices = stages,
                                            .schedule = schedule,
                                            .micro_batches = micro_batches,
                                            .micro_batch_rows = kRows}));
  const auto data = Value(LoadData(
      {.spec = absl::StrFormat("synthetic:%dx%dx%d", kRows * micro_batches, kFeatures, kClasses)}));
  const auto trainer =
      Value(Trainer::Create(run, {.learning_rate = LearningRate::Constant(1e-5F)}));
  std::vector<int64_t> rows(static_cast<size_t>(kRows * micro_batches));
  std::iota(rows.begin(), rows.end(), 0);
  return BestSeconds(runs, [&] { STAGECOACH_CHECK_OK(trainer->Step(*data.train, rows)); });
}

double StepFlops(int micro_batches) {
  // Forward, input gradient and weight gradient; the first layer's input gradient is not needed.
  const double hidden = 3.0 * kHidden * kWidth * kWidth;
  const double ends = 2.0 * kFeatures * kWidth + 3.0 * kWidth * kClasses;
  return 2.0 * kRows * micro_batches * (hidden + ends);
}

// What the parts of a step cost alone, on one core.
struct Parts {
  double our_products = 0.0;     // forward, dx and dw of the hidden layers, through kernels/
  double onednn_products = 0.0;  // the same by the fastest oneDNN form of each, on plain weights
  double adamw = 0.0;            // of all parameters
  double copy = 0.0;             // of 28 bytes a parameter
};

Parts MeasureParts() {
  const auto device = Value(kernels::CreateCpuDevice({}));
  constexpr int kWeights = 6;  // in turn: together they do not fit a cache
  constexpr int64_t kMatrix = kWidth * kWidth;
  const kernels::Buffer buffer =
      Value(device->Allocate(4 * (kWeights * kMatrix + 8 * kRows * kWidth) + (int64_t{64} << 20)));
  Parts parts;
  device->stream().Run([&] {
    auto* const floats = reinterpret_cast<float*>(buffer.data());
    std::fill_n(floats, buffer.bytes() / 4, 0.01F);
    const auto matrix = [&](int i) { return floats + i * kMatrix; };
    float* const x = floats + kWeights * kMatrix;
    float* const y = x + kRows * kWidth;
    float* const bias = y + kRows * kWidth;
    auto* const workspace = reinterpret_cast<std::byte*>(bias + kWidth);
    const Tensor xt = kernels::Float32(x, Shape{kRows, kWidth});
    const Tensor yt = kernels::Float32(y, Shape{kRows, kWidth});
    const Tensor bt = kernels::Float32(bias, Shape{kWidth});
    const auto op = Value(device->ops().Create(kernels::LinearShape{kRows, kWidth, kWidth}));
    kernels::Stream& stream = device->stream();
    int turn = 0;
    const auto next = [&] { return matrix(turn++ % kWeights); };
    const auto weights = [&] { return kernels::Float32(next(), Shape{kWidth, kWidth}); };
    constexpr int kRuns = 20;
    const auto best = [&](auto function) { return BestSeconds(kRuns, function); };
    parts.our_products =
        kHidden *
        (best([&] {
           STAGECOACH_CHECK_OK(op->Forward(stream, xt, weights(), bt, {}, yt, workspace));
         }) +
         best([&] {
           STAGECOACH_CHECK_OK(op->BackwardInput(stream, yt, {}, {}, weights(), {}, xt, workspace));
         }) +
         best([&] {
           STAGECOACH_CHECK_OK(op->BackwardWeight(stream, xt, yt, weights(), bt, false, workspace));
         }));
    const auto sgemm = [&](char ta, char tb, int64_t m, int64_t n, int64_t k, const float* a,
                           const float* b, float* c) {
      dnnl_sgemm(ta, tb, m, n, k, 1.0F, a, kWidth, b, kWidth, 0.0F, c, kWidth);
    };
    // dx: weights stored transposed would make oneDNN's product faster, so that is the form to
    // beat.
    parts.onednn_products =
        kHidden * (best([&] { sgemm('N', 'N', kRows, kWidth, kWidth, x, next(), y); }) +
                   best([&] { sgemm('N', 'N', kRows, kWidth, kWidth, y, next(), x); }) +
                   best([&] { sgemm('T', 'N', kWidth, kWidth, kRows, x, y, next()); }));
    const double matrices =
        kHidden + static_cast<double>(kFeatures * kWidth + kWidth * kClasses) / kMatrix;
    const auto flat = [&](int i) { return kernels::Float32(matrix(i), Shape{kMatrix}); };
    kernels::OptimizerOps& ops = device->ops().optimizer();
    const auto group = ops.CreateGroup(
        stream, {{.value = flat(0), .gradient = flat(1), .states = {flat(2), flat(3)}}});
    STAGECOACH_CHECK_OK(group);
    parts.adamw = matrices * best([&] { STAGECOACH_CHECK_OK(ops.AdamW(stream, {}, **group)); });
    parts.copy = matrices * best([&] {
                   std::memcpy(matrix(0), matrix(4), 4 * kMatrix);
                   std::memcpy(matrix(1), matrix(5), 4 * kMatrix);
                   std::memcpy(matrix(2), matrix(3), 4 * kMatrix);
                   std::memcpy(matrix(0), matrix(3), 2 * kMatrix);
                 });
  });
  return parts;
}

void Line(const char* what, double value, const char* unit, const char* target) {
  std::printf("%-78s %9.3f %-8s %s\n", what, value, unit, target);
  std::fflush(stdout);
}

void Run() {
  const double peak1 = kernels::RegisterPeakFlops(1);
  const double peak2 = kernels::RegisterPeakFlops(2);
  Line("peak of one core, registers only", peak1 / 1e9, "GFLOP/s", "");
  Line("peak of two cores, registers only", peak2 / 1e9, "GFLOP/s", "");

  const Parts parts = MeasureParts();
  Line("products of one batch of 64, hidden layers", parts.our_products * 1e3, "ms", "");
  Line("  oneDNN's fastest form alone / ours", parts.onednn_products / parts.our_products, "",
       "target >= 0.90");
  Line("AdamW of all parameters", parts.adamw * 1e3, "ms", "");
  Line("  / copying 28 bytes a parameter", parts.adamw / parts.copy, "", "target <= 1.2");

  const double step64 = StepSeconds(1, 1, "1f1b", 12);
  Line("step, batch 64, one device of one core", step64 * 1e3, "ms", "");
  Line("  products and optimizer alone / step", (parts.our_products + parts.adamw) / step64, "",
       "target >= 0.90");
  Line("  step / (oneDNN's products + copy)", step64 / (parts.onednn_products + parts.copy), "",
       "target <= 1.3");

  const double one16 = StepSeconds(1, 16, "1f1b", 3);
  const double two16 = StepSeconds(2, 16, "1f1b", 5);
  Line("step, 16 micro-batches of 64, one device", one16 * 1e3, "ms", "");
  Line("step, 16 micro-batches of 64, two devices", two16 * 1e3, "ms", "");
  Line("  speed-up", one16 / two16, "", absl::StrFormat("target >= %.3f", 1.85 * 16 / 17).c_str());

  const double two8 = StepSeconds(2, 8, "1f1b", 8);
  Line("step, 8 micro-batches of 64, 1F1B, two devices", two8 * 1e3, "ms", "");
  Line("  samples/s", 8.0 * kRows / two8, "", "");
  Line("  share of the peak of two cores", StepFlops(8) / two8 / peak2, "", "target >= 0.60");
}

}  // namespace
}  // namespace stagecoach::bench

int main() {
  omp_set_num_threads(1);
  stagecoach::bench::Run();
}
