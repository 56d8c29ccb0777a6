// Measures the default network (97.5 million parameters) on GPUs, compared with what the GPU can do
// in the same run: whole steps with the rate of the largest product, AdamW and LayerNorm with
// copies, and four stages on one GPU with one stage; also both ends of GPT-2, attention, the time
// of a token in text generation, and products of few rows with quantized weights. Prints a table,
// or JSON; takes about a minute.
//   build/release/bench/cuda_bench [--small] [--json] [--tuning FILE] [step] [kernels] [stages]
//     [tokens] [attention] [generate] [quantized]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/stagecoach.h"
#include "engine/train/measure/device_timer.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/cached_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/head.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/ops.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::bench {
namespace {

using engine::DeviceKind;
using engine::DeviceSpec;
using engine::Exchange;
using engine::Precision;
using kernels::DType;
using kernels::Shape;
using kernels::Stream;
using kernels::Tensor;

constexpr int64_t kFeatures = 784, kClasses = 10;

struct Sizes {
  int layers = 20;
  int64_t width = 2304;
  int64_t batch = 4096;
  std::vector<int64_t> micro_batch_rows = {512, 2048};  // for four stages
  int64_t norm_rows = 32768;
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
  std::vector<kernels::AttentionShape> attention = {
      {.samples = 16, .positions = 1024, .heads = 12, .kv_heads = 12, .head_size = 64},
      {.samples = 4, .positions = 4096, .heads = 32, .kv_heads = 32, .head_size = 128}};
  int steps = 30;
  int repetitions = 20;
};
// Returns sizes that only serve to run every line where GPUs are emulated.
Sizes SmallSizes() {
  return {.layers = 4,
          .width = 32,
          .batch = 16,
          .micro_batch_rows = {4},
          .norm_rows = 8,
          .positions = 70,
          .copy_bytes = 4096,
          .head_rows = {8},
          .vocabularies = {57, 64},
          .embedding_rows = 100,
          .token_width = 8,
          .generating_blocks = 2,
          .context = 40,
          .generated_positions = {8, 30},
          .quantized = {{64, 96}},
          .attention = {{.samples = 1, .positions = 9, .heads = 2, .kv_heads = 2, .head_size = 64}},
          .steps = 2,
          .repetitions = 2};
}

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

DeviceSpec OnGpu(const Settings& settings, Precision precision, int devices = 1) {
  return {.kind = DeviceKind::kCuda,
          .precision = precision,
          .gpus = std::vector<int>(static_cast<size_t>(devices), 0),
          .tuning_file = settings.tuning_file};
}

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
            const std::string& unit = "", const Target& target = {}) {
  if (settings.json) {
    nlohmann::ordered_json line = {{"id", id}, {"name", name}, {"value", value}, {"unit", unit}};
    if (target.side != Target::kNone) {
      line["target"] = target.ToString();
      line["met"] = target.MetBy(value);
    }
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%-66s %10.3f %-8s %s\n", name.c_str(), value, unit.c_str(),
                target.side == Target::kNone ? "" : ("target " + target.ToString()).c_str());
  }
  std::fflush(stdout);
}

// ---- Whole steps.

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

// ---- Kernels that are bound by memory.

double Gigabytes(int64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

// Returns bytes per second, counting each byte read and each byte written.
double BenchCopy(const Settings& settings, engine::DeviceTimer& timer) {
  const int64_t bytes = settings.sizes.copy_bytes;
  const Tensor from = Value(timer.Random(Shape{bytes / 4}, DType::kFloat32));
  const Tensor to = Value(timer.Random(Shape{bytes / 4}, DType::kFloat32));
  const double seconds = Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int) {
    return stream.Copy(to.data, from.data, bytes);
  }));
  Report(settings, "copy", "copy on the device, bytes read and written",
         Gigabytes(2 * bytes, seconds), "GB/s");
  return 2.0 * static_cast<double>(bytes) / seconds;
}

struct Moved {
  const char* id;
  const char* name;
  int64_t bytes;
  double seconds;
};
void ReportMoved(const Settings& settings, double copy_rate, const Moved& moved) {
  Report(settings, moved.id, moved.name, Gigabytes(moved.bytes, moved.seconds), "GB/s");
  Report(settings, absl::StrCat(moved.id, "_of_copy"), absl::StrCat("  ", moved.name, " / copy"),
         static_cast<double>(moved.bytes) / moved.seconds / copy_rate, "",
         {Target::kAtLeast, 0.85});
}

// Measures AdamW for all parameters of the default network in one group, in bfloat16 training.
void BenchAdamW(const Settings& settings, double copy_rate, engine::DeviceTimer& timer) {
  const Sizes& sizes = settings.sizes;
  std::vector<kernels::ParameterTensors> parameters;
  int64_t elements = 0;
  const auto add = [&](int64_t count) {
    const Shape shape{count};
    const auto numbers = [&] { return Value(timer.Random(shape, DType::kFloat32)); };
    // Second moments are not negative.
    const Tensor second = {Value(timer.Workspace(4 * count)), DType::kFloat32, shape};
    parameters.push_back({.value = numbers(),
                          .working = Value(timer.Random(shape, DType::kBfloat16)),
                          .gradient = numbers(),
                          .states = {numbers(), second}});
    elements += count;
  };
  for (int layer = 0; layer < sizes.layers; ++layer) {
    const bool first = layer == 0, last = layer == sizes.layers - 1;
    const int64_t outputs = last ? kClasses : sizes.width;
    add((first ? kFeatures : sizes.width) * outputs);
    for (int vector = 0; vector < (first || last ? 1 : 3); ++vector) add(outputs);
  }
  kernels::Device& device = timer.device();
  std::unique_ptr<kernels::ParameterGroup> group;
  device.stream().Run(
      [&] { group = Value(device.ops().optimizer().CreateGroup(device.stream(), parameters)); });
  const double seconds = Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int) {
    return device.ops().optimizer().AdamW(stream, {.learning_rate = 1e-5F}, *group);
  }));
  // Read are value, gradient and two moments; written are value, its rounded copy and two moments.
  constexpr int64_t kBytes = 4 * 4 + 3 * 4 + 2;
  ReportMoved(settings, copy_rate,
              {"adamw", "AdamW of all parameters", elements * kBytes, seconds});
}

void BenchLayerNorm(const Settings& settings, double copy_rate, engine::DeviceTimer& timer) {
  const int64_t rows = settings.sizes.norm_rows, width = settings.sizes.width;
  kernels::Device& device = timer.device();
  const auto matrix = [&] {
    return Value(timer.Random(Shape{rows, width}, device.activation_type()));
  };
  const auto vector = [&](DType type) { return Value(timer.Random(Shape{width}, type)); };
  const Tensor x = matrix(), y = matrix(), dy = matrix(), addend = matrix(), dx = matrix();
  const Tensor gamma = vector(device.activation_type()), beta = vector(device.activation_type());
  const Tensor dgamma = vector(DType::kFloat32), dbeta = vector(DType::kFloat32);
  const Tensor statistics = Value(timer.Random(Shape{rows, 2}, DType::kFloat32));
  const auto op =
      Value(device.ops().Create(kernels::LayerNormShape{.rows = rows, .features = width}));
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  const int runs = settings.sizes.repetitions;
  const int64_t bytes = x.bytes();
  ReportMoved(settings, copy_rate,
              {"layer_norm", "LayerNorm, forward", 2 * bytes,
               Value(timer.Seconds(runs, [&](Stream& stream, int) {
                 return op->Forward(stream, x, gamma, beta, /*addend=*/{}, statistics, y);
               }))});
  ReportMoved(settings, copy_rate,
              {"layer_norm_dx", "LayerNorm, input gradient with residual", 4 * bytes,
               Value(timer.Seconds(runs, [&](Stream& stream, int) {
                 return op->BackwardInput(stream, dy, x, gamma, statistics, addend, dx);
               }))});
  ReportMoved(settings, copy_rate,
              {"layer_norm_dw", "LayerNorm, weight gradient", 2 * bytes,
               Value(timer.Seconds(runs, [&](Stream& stream, int) {
                 return op->BackwardWeight(stream, dy, x, statistics, dgamma, dbeta, false,
                                           workspace);
               }))});
  ReportMoved(settings, copy_rate,
              {"layer_norm_dx_dw", "LayerNorm, both gradients with residual", 4 * bytes,
               Value(timer.Seconds(runs, [&](Stream& stream, int) {
                 return op->Backward(stream, dy, x, gamma, statistics, addend, dx, dgamma, dbeta,
                                     false, workspace);
               }))});
}

// Measures GELU's gradient and the sums over its columns: a layer's whole backward pass except for
// its product, which has few inputs and is timed separately.
void BenchActivationGradient(const Settings& settings, double copy_rate,
                             engine::DeviceTimer& timer) {
  constexpr int64_t kInputs = 8;
  const int64_t rows = settings.sizes.norm_rows, width = settings.sizes.width;
  kernels::Device& device = timer.device();
  const DType type = device.activation_type();
  const kernels::LinearShape shape{
      .rows = rows, .inputs = kInputs, .outputs = width, .activation = kernels::Activation::kGelu};
  kernels::LinearShape plain_shape = shape;
  plain_shape.has_bias = false;
  const auto op = Value(device.ops().Create(shape)),
             plain = Value(device.ops().Create(plain_shape));
  const auto matrix = [&](int64_t columns) {
    return Value(timer.Random(Shape{rows, columns}, type));
  };
  const Tensor dy = matrix(width), z = matrix(width), dz = matrix(width), x = matrix(kInputs);
  const Tensor w = Value(timer.Random(Shape{kInputs, width}, type));
  const Tensor dw = Value(timer.Random(Shape{kInputs, width}, DType::kFloat32));
  const Tensor db = Value(timer.Random(Shape{width}, DType::kFloat32));
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  const int runs = settings.sizes.repetitions;
  const double product = Value(timer.Seconds(runs, [&](Stream& stream, int) {
    return plain->BackwardWeight(stream, x, dz, dw, {}, false, workspace);
  }));
  const double both = Value(timer.Seconds(runs, [&](Stream& stream, int) {
    return op->Backward(stream, dy, x, {}, z, w, dz, {}, dw, db, false, workspace, nullptr);
  }));
  ReportMoved(settings, copy_rate,
              {"gelu_gradient", "GELU's gradient and the bias's", 3 * dy.bytes(), both - product});
}

void BenchKernels(const Settings& settings) {
  const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  const double copy_rate = BenchCopy(settings, timer);
  BenchAdamW(settings, copy_rate, timer);
  BenchLayerNorm(settings, copy_rate, timer);
  BenchActivationGradient(settings, copy_rate, timer);
}

// ---- Both ends of a language model.

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

// Returns ids of which a few are frequent, as words are: their logarithms are uniform.
Tensor Words(engine::DeviceTimer& timer, int64_t count, int64_t vocabulary) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double uniform = static_cast<double>(i * 7919 % count) / static_cast<double>(count);
    ids[static_cast<size_t>(i)] =
        static_cast<int32_t>(std::floor(std::pow(static_cast<double>(vocabulary), uniform)) - 1.0);
  }
  return {Upload(timer, ids.data(), count), DType::kInt32, Shape{count}};
}

void BenchHead(const Settings& settings, int64_t rows, int64_t classes) {
  const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  const int64_t features = settings.sizes.token_width;
  const kernels::HeadShape shape{.rows = rows, .features = features, .classes = classes};
  const auto op = Value(device->ops().Create(shape));
  const DType type = device->activation_type();
  const Tensor x = Value(timer.Random(Shape{rows, features}, type));
  const Tensor dx = Value(timer.Random(Shape{rows, features}, type));
  const Tensor w = Value(timer.Random(Shape{classes, features}, type));
  const Tensor dw = Value(timer.Random(Shape{classes, features}, DType::kFloat32));
  const Tensor labels = Words(timer, rows, classes);
  const Tensor result = {Value(timer.Workspace(16)), DType::kFloat64, Shape{2}};
  const kernels::LossTerms host_terms = {.valid_samples = rows, .scale = 1e-3F};
  const kernels::LossTerms* const terms = Upload(timer, &host_terms, 1);
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  const int runs = settings.sizes.repetitions;
  const double forward = Value(timer.Seconds(runs, [&](Stream& stream, int) {
    return op->Forward(stream, x, w, labels, terms, {}, result, workspace);
  }));
  const double backward = Value(timer.Seconds(runs, [&](Stream& stream, int) {
    return op->Backward(stream, x, w, labels, terms, result, dx, dw, true, workspace);
  }));
  const double flops = 2.0 * static_cast<double>(rows * features * classes);
  const auto report = [&](const char* id, const char* what, double seconds, int products) {
    const std::string name =
        absl::StrFormat("head, (%d, %d) x (%d, %d), %s", rows, features, features, classes, what);
    const std::string full_id = absl::StrFormat("head_%s_%d_%d", id, rows, classes);
    Report(settings, full_id, name, seconds * 1e3, "ms");
    Report(settings, full_id + "_rate", absl::StrCat("  its products / time"),
           products * flops / seconds / 1e12, "TFLOP/s");
  };
  report("forward", "logits and loss", forward, 1);
  report("backward", "logits, loss and gradients", backward, 3);
}

// Measures what the head does with logits, in place.
void BenchCrossEntropy(const Settings& settings, double copy_rate, engine::DeviceTimer& timer) {
  const int64_t rows = settings.sizes.head_rows.front();
  const int64_t classes = settings.sizes.vocabularies.back();
  kernels::Device& device = timer.device();
  const auto op = Value(device.ops().Create(kernels::SoftmaxCrossEntropyShape{{rows, classes}}));
  const Tensor logits = Value(timer.Random(Shape{rows, classes}, device.activation_type()));
  const Tensor labels = Words(timer, rows, classes);
  const Tensor result = {Value(timer.Workspace(16)), DType::kFloat64, Shape{2}};
  const kernels::LossTerms host_terms = {.valid_samples = rows, .scale = 1e-3F};
  const kernels::LossTerms* const terms = Upload(timer, &host_terms, 1);
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  ReportMoved(settings, copy_rate,
              {"cross_entropy", "softmax, loss and gradient in place", 2 * logits.bytes(),
               Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int) {
                 return op->Compute(stream, logits, labels, terms, logits, result, workspace);
               }))});
}

void BenchEmbedding(const Settings& settings, engine::DeviceTimer& timer) {
  const Sizes& sizes = settings.sizes;
  const int64_t vocabulary = sizes.vocabularies.front();
  kernels::Device& device = timer.device();
  const kernels::EmbeddingShape shape{
      .rows = sizes.embedding_rows, .vocabulary = vocabulary, .features = sizes.token_width};
  const auto op = Value(device.ops().Create(shape));
  const Tensor ids = Words(timer, shape.rows, vocabulary);
  const Tensor dy =
      Value(timer.Random(Shape{shape.rows, shape.features}, device.activation_type()));
  const Tensor dtokens = Value(timer.Random(Shape{vocabulary, shape.features}, DType::kFloat32));
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  Report(settings, "embedding_gradient",
         absl::StrFormat("gradient of an embedding, %d ids", shape.rows),
         1e3 * Value(timer.Seconds(sizes.repetitions,
                                   [&](Stream& stream, int) {
                                     return op->BackwardWeight(stream, ids, dy, dtokens, {}, true,
                                                               workspace);
                                   })),
         "ms");
}

// Measures the last position of a long sequence, whose cache is read once: several in turn, because
// a GPU has a cache of its own.
void BenchCachedAttention(const Settings& settings, double copy_rate, engine::DeviceTimer& timer) {
  constexpr int kCaches = 4;
  const int64_t positions = settings.sizes.positions;
  kernels::Device& device = timer.device();
  const DType type = device.activation_type();
  const auto op =
      Value(device.ops().Create(kernels::CachedAttentionShape{.positions = positions,
                                                              .heads = 32,
                                                              .kv_heads = 8,
                                                              .head_size = 128,
                                                              .rotary_base = 10000.0F}));
  std::vector<Tensor> caches;
  for (int i = 0; i < kCaches; ++i) {
    caches.push_back(Value(timer.Random(Shape{op->cache_bytes() / SizeOf(type)}, type)));
  }
  const Tensor qkv = Value(timer.Random(Shape{1, (32 + 2 * 8) * 128}, type));
  const Tensor y = Value(timer.Random(Shape{1, 32 * 128}, type));
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  const kernels::CachedRow host_last{.position = positions - 1};
  const kernels::CachedRow* const last = Upload(timer, &host_last, 1);
  const double seconds =
      Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int turn) {
        std::byte* const cache =
            static_cast<std::byte*>(caches[static_cast<size_t>(turn % kCaches)].data);
        return op->Forward(stream, last, qkv, cache, y, workspace);
      }));
  ReportMoved(
      settings, copy_rate,
      {"cached_attention", "attention of one position, its cache", op->cache_bytes(), seconds});
}

void BenchTokens(const Settings& settings) {
  for (const int64_t rows : settings.sizes.head_rows) {
    for (const int64_t classes : settings.sizes.vocabularies) BenchHead(settings, rows, classes);
  }
  const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  const double copy_rate = BenchCopy(settings, timer);
  BenchCrossEntropy(settings, copy_rate, timer);
  BenchEmbedding(settings, timer);
  BenchCachedAttention(settings, copy_rate, timer);
}

// ---- A token of GPT-2, padded as after a prompt: blocks without both ends, in graphs.

class GeneratingBlocks {
 public:
  GeneratingBlocks(const Settings& settings, engine::DeviceTimer& timer)
      : settings_(settings), timer_(timer) {
    kernels::Ops& ops = timer.device().ops();
    const auto linear = [&](int64_t inputs, int64_t outputs, kernels::Activation activation) {
      return Value(ops.Create(kernels::LinearShape{kRows, inputs, outputs, activation}));
    };
    norm_ = Value(ops.Create(kernels::LayerNormShape{.rows = kRows, .features = width_}));
    attention_ = Value(ops.Create(kernels::CachedAttentionShape{.rows = kRows,
                                                                .positions = settings.sizes.context,
                                                                .heads = width_ / head_size_,
                                                                .kv_heads = width_ / head_size_,
                                                                .head_size = head_size_}));
    products_.push_back({"qkv", width_, 3 * width_});
    products_.push_back({"projection", width_, width_});
    products_.push_back({"up and GELU", width_, 4 * width_, kernels::Activation::kGelu});
    products_.push_back({"down", 4 * width_, width_});
    int64_t workspace_bytes = attention_->workspace_bytes();
    for (Product& product : products_) {
      product.op = linear(product.inputs, product.outputs, product.activation);
      workspace_bytes = std::max(workspace_bytes, product.op->workspace_bytes());
      for (int i = 0; i < blocks(); ++i) {
        product.w.push_back(Random({product.inputs, product.outputs}));
      }
      product.bias = Random({product.outputs});
    }
    workspace_ = Value(timer.Workspace(workspace_bytes));
    for (int i = 0; i < blocks(); ++i) {
      caches_.push_back(Random({attention_->cache_bytes() / SizeOf(DType::kBfloat16)}));
    }
    statistics_ = Value(timer.Random(Shape{kRows, 2}, DType::kFloat32));
  }

  void Run() {
    Time("norm", "a norm of a sum", [&](Stream& stream, int) { return Norm(stream); });
    for (size_t i = 0; i < products_.size(); ++i) {
      Time(absl::StrCat("product_", i), products_[i].name,
           [&](Stream& stream, int block) { return Multiply(stream, i, block); });
    }
    for (const int64_t position : settings_.sizes.generated_positions) {
      const kernels::CachedRow row{.position = position};
      const kernels::CachedRow* const first = Upload(timer_, &row, 1);
      const auto attend = [&](Stream& stream, int block) {
        std::byte* const cache = static_cast<std::byte*>(caches_[static_cast<size_t>(block)].data);
        return attention_->Forward(stream, first, qkv_, cache, x_, workspace_);
      };
      const std::string at = absl::StrFormat("at position %d", position);
      Time(absl::StrCat("attention_", position), absl::StrCat("attention ", at), attend);
      Time(absl::StrCat("block_", position), absl::StrCat("a whole block ", at),
           [&](Stream& stream, int block) -> absl::Status {
             RETURN_IF_ERROR(Norm(stream));
             RETURN_IF_ERROR(Multiply(stream, 0, block));
             RETURN_IF_ERROR(attend(stream, block));
             RETURN_IF_ERROR(Multiply(stream, 1, block));
             RETURN_IF_ERROR(Norm(stream));
             RETURN_IF_ERROR(Multiply(stream, 2, block));
             return Multiply(stream, 3, block);
           });
    }
  }

 private:
  static constexpr int64_t kRows = 8;

  struct Product {
    const char* name;
    int64_t inputs, outputs;
    kernels::Activation activation = kernels::Activation::kNone;
    std::unique_ptr<kernels::LinearOp> op = nullptr;
    std::vector<Tensor> w = {};  // one set for each block, so that no cache holds them
    Tensor bias = {};
  };

  int blocks() const { return settings_.sizes.generating_blocks; }
  Tensor Random(const Shape& shape) { return Value(timer_.Random(shape, DType::kBfloat16)); }

  absl::Status Norm(Stream& stream) {
    return norm_->Forward(stream, x_, gamma_, gamma_, addend_, statistics_, narrow_);
  }
  absl::Status Multiply(Stream& stream, size_t i, int block) {
    const Product& product = products_[i];
    return product.op->Forward(stream, product.inputs == width_ ? narrow_ : hidden_,
                               product.w[static_cast<size_t>(block)], product.bias, z_,
                               i == 0   ? qkv_
                               : i == 2 ? hidden_
                                        : x_,
                               workspace_);
  }

  // Measures the time of one block, with all blocks running one after another.
  void Time(const std::string& id, const std::string& name,
            const std::function<absl::Status(Stream&, int)>& issue) {
    const auto recording = Value(timer_.device().CreateRecording());
    const double seconds =
        Value(timer_.Seconds(settings_.sizes.repetitions, [&](Stream& stream, int) {
          return stream.Replay(*recording, [&]() -> absl::Status {
            for (int block = 0; block < blocks(); ++block) RETURN_IF_ERROR(issue(stream, block));
            return absl::OkStatus();
          });
        }));
    Report(settings_, "generate_" + id, absl::StrFormat("generating, %d rows, %s", kRows, name),
           1e6 * seconds / blocks(), "us");
  }

  const Settings& settings_;
  engine::DeviceTimer& timer_;
  const int64_t width_ = settings_.sizes.token_width;
  const int64_t head_size_ = std::min<int64_t>(64, width_);
  std::unique_ptr<kernels::LayerNormOp> norm_;
  std::unique_ptr<kernels::CachedAttentionOp> attention_;
  std::vector<Product> products_;
  std::vector<Tensor> caches_;
  const Tensor x_ = Random({kRows, width_}), addend_ = Random({kRows, width_});
  const Tensor narrow_ = Random({kRows, width_}), gamma_ = Random({width_});
  const Tensor qkv_ = Random({kRows, 3 * width_});
  const Tensor hidden_ = Random({kRows, 4 * width_}), z_ = Random({kRows, 4 * width_});
  Tensor statistics_;
  std::byte* workspace_ = nullptr;
};

void BenchGenerate(const Settings& settings) {
  const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  GeneratingBlocks(settings, timer).Run();
  if (settings.json) return;
  for (const std::string& choice : device->choices()) std::printf("%s\n", choice.c_str());
}

// ---- Products of few rows with quantized weights of linear layers of an 8-billion-parameter
// Llama.

void BenchQuantizedRows(const Settings& settings, const kernels::LinearShape& shape,
                        engine::DeviceTimer& timer) {
  constexpr int kWeights = 8;  // used in turn, so that no cache holds them
  kernels::Device& device = timer.device();
  const DType type = device.activation_type();
  const Tensor x = Value(timer.Random(Shape{shape.rows, shape.inputs}, type));
  const Tensor y = Value(timer.Random(Shape{shape.rows, shape.outputs}, type));
  const int64_t bytes = shape.quantized->bytes();
  std::vector<Tensor> weights;
  for (int i = 0; i < kWeights; ++i) {
    const Tensor words = Value(timer.Random(Shape{bytes / 4}, DType::kFloat32));
    weights.push_back({words.data, DType::kUint8, Shape{bytes}});
  }
  const auto report = [&](const char* id, const char* what, kernels::LinearOp& op) {
    std::byte* const workspace = Value(timer.Workspace(op.workspace_bytes()));
    const auto recording = Value(device.CreateRecording());
    const double seconds =
        Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int) {
          return stream.Replay(*recording, [&]() -> absl::Status {
            for (const Tensor& w : weights) {
              RETURN_IF_ERROR(op.Forward(stream, x, w, {}, {}, y, workspace));
            }
            return absl::OkStatus();
          });
        }));
    const char* const kind = QuantizationName(shape.quantized->kind);
    const std::string name =
        absl::StrFormat("%s_%s_%d_%d_%d", id, kind, shape.rows, shape.inputs, shape.outputs);
    Report(settings, name,
           absl::StrFormat("%s, %d rows x (%d, %d), %s", kind, shape.rows, shape.inputs,
                           shape.outputs, what),
           1e6 * seconds / kWeights, "us");
    Report(settings, name + "_rate", "  its stored bytes / time",
           Gigabytes(kWeights * bytes, seconds), "GB/s");
  };
  report("quantized", "as it is stored", *Value(device.ops().Create(shape)));
  report("expanded", "expanded first", *Value(CreateExpandedLinear(shape, device)));
}

void BenchQuantized(const Settings& settings) {
  for (const auto& [inputs, outputs] : settings.sizes.quantized) {
    for (const kernels::Quantization kind :
         {kernels::Quantization::kNf4, kernels::Quantization::kInt8}) {
      for (const int64_t rows : {1, 8, 16}) {
        const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
        auto timer = Value(engine::DeviceTimer::Create(*device));
        BenchQuantizedRows(settings,
                           {.rows = rows,
                            .inputs = inputs,
                            .outputs = outputs,
                            .has_bias = false,
                            .quantized = {{kind, inputs, outputs}},
                            .forward_only = true},
                           timer);
      }
    }
  }
}

// ---- Causal attention, counting the operations of the nonzero weights only.

void BenchAttentionOf(const Settings& settings, const kernels::AttentionShape& shape,
                      engine::DeviceTimer& timer) {
  kernels::Device& device = timer.device();
  const auto op = Value(device.ops().Create(shape));
  const int64_t rows = shape.samples * shape.positions, width = shape.heads * shape.head_size;
  const int64_t packed = width + 2 * shape.kv_heads * shape.head_size;
  const auto matrix = [&](int64_t columns) {
    return Value(timer.Random(Shape{rows, columns}, device.activation_type()));
  };
  const Tensor qkv = matrix(packed), dqkv = matrix(packed), y = matrix(width), dy = matrix(width);
  const Tensor statistics =
      Value(timer.Random(Shape{shape.samples, shape.heads, shape.positions}, DType::kFloat32));
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  const double flops = 2.0 * static_cast<double>(rows * shape.positions * width);
  const auto report = [&](const char* direction, double factor, double seconds) {
    const std::string id = absl::StrFormat("attention_%s_%d_%d_%d_%d", direction, shape.samples,
                                           shape.heads, shape.positions, shape.head_size);
    Report(settings, id,
           absl::StrFormat("attention %d x %d x %d x %d, %s", shape.samples, shape.heads,
                           shape.positions, shape.head_size, direction),
           seconds * 1e3, "ms");
    Report(settings, id + "_rate", "  its products / time", factor * flops / seconds / 1e12,
           "TFLOP/s");
  };
  const int runs = settings.sizes.repetitions;
  report("forward", 1.0, Value(timer.Seconds(runs, [&](Stream& stream, int) {
           return op->Forward(stream, qkv, /*documents=*/{}, statistics, y, workspace);
         })));
  report("backward", 2.5, Value(timer.Seconds(runs, [&](Stream& stream, int) {
           return op->BackwardInput(stream, dy, qkv, /*documents=*/{}, y, statistics, dqkv,
                                    workspace);
         })));
}

void BenchAttention(const Settings& settings) {
  for (const kernels::AttentionShape& shape : settings.sizes.attention) {
    const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
    auto timer = Value(engine::DeviceTimer::Create(*device));
    BenchAttentionOf(settings, shape, timer);
    for (const std::string& choice : device->choices()) {
      if (!absl::StartsWith(choice, "attention ")) continue;
      const nlohmann::json line = {{"chosen", choice}};
      std::printf("%s\n", settings.json ? line.dump().c_str() : choice.c_str());
    }
  }
}

// ---- Four stages on one GPU.

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

int Run(int argc, char** argv) {
  CLI::App app("Benchmarks of the CUDA backend");
  Settings settings;
  bool small = false;
  const std::vector<std::string> all = {"step",      "kernels",  "stages",   "tokens",
                                        "attention", "generate", "quantized"};
  std::vector<std::string> sections = all;
  app.add_flag("--small", small, "Tiny sizes, whose figures are meaningless");
  app.add_flag("--json", settings.json, "Print one JSON object per line");
  app.add_option("--tuning", settings.tuning_file, "Where choices of algorithms are kept");
  app.add_option("sections", sections,
                 "step, kernels, stages, tokens, attention, generate, quantized")
      ->check(CLI::IsMember(all));
  CLI11_PARSE(app, argc, argv);
  if (small) settings.sizes = SmallSizes();
  for (const std::string& section : sections) {
    if (section == "step") BenchSteps(settings);
    if (section == "kernels") BenchKernels(settings);
    if (section == "stages") BenchStages(settings);
    if (section == "tokens") BenchTokens(settings);
    if (section == "generate") BenchGenerate(settings);
    if (section == "quantized") BenchQuantized(settings);
    if (section == "attention") BenchAttention(settings);
  }
  return 0;
}

}  // namespace
}  // namespace stagecoach::bench

int main(int argc, char** argv) { return stagecoach::bench::Run(argc, argv); }
