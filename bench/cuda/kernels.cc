// Kernels that are bound by memory, beside a copy; and causal attention, counting the operations of
// the nonzero weights only.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/cuda_bench.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/swiglu.h"

namespace stagecoach::bench {
namespace {

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

// Measures all gradients of a LayerNorm or RMSNorm, with and without a residual.
void BenchNormBackward(const Settings& settings, double copy_rate, engine::DeviceTimer& timer,
                       const kernels::LayerNormShape& shape) {
  kernels::Device& device = timer.device();
  const Shape matrix_shape{shape.rows, shape.features}, vector_shape{shape.features};
  const auto matrix = [&] { return Value(timer.Random(matrix_shape, device.activation_type())); };
  const auto sums = [&] { return Value(timer.Random(vector_shape, DType::kFloat32)); };
  const Tensor x = matrix(), dy = matrix(), addend = matrix(), dx = matrix();
  const Tensor gamma = Value(timer.Random(vector_shape, device.activation_type()));
  const Tensor dgamma = sums(), dbeta = shape.centers ? sums() : Tensor{};
  const Tensor statistics = Value(
      timer.Random(shape.centers ? Shape{shape.rows, 2} : Shape{shape.rows}, DType::kFloat32));
  const auto op = Value(device.ops().Create(shape));
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  for (const bool adds : {false, true}) {
    const std::string id =
        absl::StrFormat("%s_backward_%d_%d%s", shape.centers ? "layer_norm" : "rms_norm",
                        shape.rows, shape.features, adds ? "_residual" : "");
    const std::string name =
        absl::StrFormat("%s backward%s, %d x %d", shape.centers ? "LayerNorm" : "RMSNorm",
                        adds ? " with residual" : "", shape.rows, shape.features);
    ReportMoved(settings, copy_rate,
                {id, name, (adds ? 4 : 3) * x.bytes(),
                 Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int) {
                   return op->Backward(stream, dy, x, gamma, statistics, adds ? addend : Tensor{},
                                       dx, dgamma, dbeta, false, workspace);
                 }))});
  }
}

void BenchSwiGlu(const Settings& settings, double copy_rate, engine::DeviceTimer& timer) {
  const auto [rows, features] = settings.sizes.gates;
  kernels::Device& device = timer.device();
  const auto matrix = [&, count = rows](int64_t columns) {
    return Value(timer.Random(Shape{count, columns}, device.activation_type()));
  };
  const Tensor x = matrix(2 * features), dx = matrix(2 * features);
  const Tensor y = matrix(features), dy = matrix(features);
  const auto op =
      Value(device.ops().Create(kernels::SwiGluShape{.rows = rows, .features = features}));
  const int runs = settings.sizes.repetitions;
  ReportMoved(
      settings, copy_rate,
      {"swiglu", absl::StrFormat("SwiGLU, %d x %d", rows, features), x.bytes() + y.bytes(),
       Value(timer.Seconds(runs, [&](Stream& stream, int) { return op->Forward(stream, x, y); }))});
  ReportMoved(settings, copy_rate,
              {"swiglu_backward", absl::StrFormat("SwiGLU backward, %d x %d", rows, features),
               2 * x.bytes() + dy.bytes(), Value(timer.Seconds(runs, [&](Stream& stream, int) {
                 return op->BackwardInput(stream, dy, x, dx);
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

}  // namespace

void BenchKernels(const Settings& settings) {
  const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  const double copy_rate = BenchCopy(settings, timer);
  BenchAdamW(settings, copy_rate, timer);
  BenchLayerNorm(settings, copy_rate, timer);
  BenchActivationGradient(settings, copy_rate, timer);
  for (const auto& [rows, features] : settings.sizes.norms) {
    for (const bool centers : {false, true}) {
      BenchNormBackward(settings, copy_rate, timer,
                        {.rows = rows, .features = features, .centers = centers});
    }
  }
  BenchSwiGlu(settings, copy_rate, timer);
  // The head pads rows of logits to whole vectors.
  const int64_t classes = settings.sizes.vocabularies.front();
  for (const int64_t padded : {(classes + 7) / 8 * 8, classes}) {
    BenchCrossEntropy(settings, copy_rate, timer, padded);
  }
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

}  // namespace stagecoach::bench
