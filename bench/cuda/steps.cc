// Whole steps of the default network, beside the rate of its largest product.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/cuda/cuda_bench.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"

namespace stagecoach::bench {
namespace {

// Returns the median time of a step of the default network, with the host's work for it: features
// are copied to the device in each step, and the next step's are prepared meanwhile, as in Fit.
double StepSeconds(const Settings& settings, Precision precision, int devices, int micro_batches,
                   int64_t micro_batch_rows) {
  const Sizes& sizes = settings.sizes;
  const auto model = Value(engine::DefaultNetwork(kFeatures, kClasses, sizes.layers, sizes.width));
  const DeviceSpec spec = OnGpu(settings, precision, devices);
  const auto run = Value(engine::PrepareRun(model, {.devices = devices,
                                                    .micro_batches = micro_batches,
                                                    .micro_batch_rows = micro_batch_rows,
                                                    .device = spec,
                                                    .exchange = Exchange::kCopies}));
  const int64_t batch = micro_batches * micro_batch_rows;
  const auto data = Value(engine::LoadData(
      {.spec = absl::StrFormat("synthetic:%dx%dx%d", batch, kFeatures, kClasses)}));
  const auto trainer =
      Value(engine::Trainer::Create(run, {.learning_rate = engine::LearningRate::Constant(1e-5F),
                                          .device = spec,
                                          .exchange = Exchange::kCopies}));
  std::vector<int64_t> rows(static_cast<size_t>(batch));
  std::iota(rows.begin(), rows.end(), 0);
  constexpr int kWarmUp = 3;  // steps in which libraries load and work is recorded
  std::vector<double> seconds;
  for (int step = 0; step < kWarmUp + sizes.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    STAGECOACH_CHECK_OK(trainer->Step(*data.train, rows, rows));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (step >= kWarmUp) seconds.push_back(taken.count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + sizes.steps / 2, seconds.end());
  return seconds[static_cast<size_t>(sizes.steps / 2)];
}

double StepFlops(const Sizes& sizes) {
  // The passes are forward, input gradient and weight gradient; the first layer's input gradient is
  // not needed.
  const auto width = static_cast<double>(sizes.width);
  const double hidden = 3.0 * (sizes.layers - 2) * width * width;
  const double ends = 2.0 * kFeatures * width + 3.0 * width * kClasses;
  return 2.0 * static_cast<double>(sizes.batch) * (hidden + ends);
}

// Returns the time of the network's largest product for a batch, in seconds: the fastest of its
// three forms.
double ProductSeconds(const Settings& settings, Precision precision) {
  constexpr int kSets = 6;  // sets of operands: together they do not fit a cache
  const int64_t rows = settings.sizes.batch, width = settings.sizes.width;
  const auto device = Value(engine::MakeDevice(OnGpu(settings, precision), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  const DType type = device->activation_type();
  std::vector<Tensor> x, w, y, dw;
  for (int set = 0; set < kSets; ++set) {
    x.push_back(Value(timer.Random(Shape{rows, width}, type)));
    y.push_back(Value(timer.Random(Shape{rows, width}, type)));
    w.push_back(Value(timer.Random(Shape{width, width}, type)));
    dw.push_back(Value(timer.Random(Shape{width, width}, DType::kFloat32)));
  }
  const Tensor bias = Value(timer.Random(Shape{width}, type));
  const kernels::LinearShape shape{.rows = rows, .inputs = width, .outputs = width};
  kernels::LinearShape plain_shape = shape;
  plain_shape.has_bias = false;
  const auto op = Value(device->ops().Create(shape));
  const auto plain = Value(device->ops().Create(plain_shape));  // the bias's gradient is no product
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  const int runs = settings.sizes.repetitions;
  const auto set = [](int turn) { return static_cast<size_t>(turn % kSets); };
  const double forward = Value(timer.Seconds(runs, [&](Stream& stream, int turn) {
    const size_t i = set(turn);
    return op->Forward(stream, x[i], w[i], bias, {}, y[i], workspace);
  }));
  const double input = Value(timer.Seconds(runs, [&](Stream& stream, int turn) {
    const size_t i = set(turn);
    return op->BackwardInput(stream, y[i], {}, {}, w[i], {}, x[i], workspace);
  }));
  const double weight = Value(timer.Seconds(runs, [&](Stream& stream, int turn) {
    const size_t i = set(turn);
    return plain->BackwardWeight(stream, x[i], y[i], dw[i], {}, false, workspace);
  }));
  const double flops = 2.0 * static_cast<double>(rows * width * width);
  const char* const name = PrecisionName(precision);
  const auto report = [&](const char* form, double seconds) {
    Report(settings, absl::StrCat("product_", form, "_", name),
           absl::StrFormat("%s, product (%d, %d) x (%d, %d), %s", name, rows, width, width, width,
                           form),
           flops / seconds / 1e12, "TFLOP/s");
  };
  report("forward", forward);
  report("dx", input);
  report("dw", weight);
  return std::min({forward, input, weight});
}

}  // namespace

void BenchSteps(const Settings& settings) {
  const Sizes& sizes = settings.sizes;
  const auto width = static_cast<double>(sizes.width);
  for (const Precision precision : {Precision::kBfloat16, Precision::kTf32, Precision::kFloat32}) {
    const char* const name = PrecisionName(precision);
    const double rate = 2.0 * static_cast<double>(sizes.batch) * width * width /
                        ProductSeconds(settings, precision);
    const double step = StepSeconds(settings, precision, 1, 1, sizes.batch);
    const bool is_bf16 = precision == Precision::kBfloat16;
    Report(settings, absl::StrCat("step_", name),
           absl::StrFormat("%s, step of batch %d, one device", name, sizes.batch), step * 1e3,
           "ms");
    Report(settings, absl::StrCat("step_rate_", name),
           absl::StrFormat("%s, the step's products / time / rate of the fastest form", name),
           StepFlops(sizes) / step / rate, "", is_bf16 ? Target{Target::kAtLeast, 0.6} : Target{});
  }
}

void BenchStages(const Settings& settings) {
  constexpr int kMicroBatches = 8;
  for (const int64_t rows : settings.sizes.micro_batch_rows) {
    const auto seconds = [&](int devices) {
      return StepSeconds(settings, Precision::kBfloat16, devices, kMicroBatches, rows);
    };
    const double one = seconds(1), four = seconds(4);
    const auto report = [&](const char* id, const char* what, double value, const char* unit,
                            const Target& target) {
      Report(settings, absl::StrCat(id, "_", rows),
             absl::StrFormat("bf16, %d micro-batches of %d, %s", kMicroBatches, rows, what), value,
             unit, target);
    };
    report("one_stage", "one stage", one * 1e3, "ms", {});
    report("four_stages", "four stages on one GPU", four * 1e3, "ms", {});
    report("four_of_one", "four stages / one", four / one, "", {Target::kAtMost, 1.08});
  }
}

}  // namespace stagecoach::bench
