// Measures products, convolutions, attention, a head, AdamW and LayerNorm of the CPU backend,
// compared with oneDNN and a plain copy on the same shapes in the same run. One core.
//   build/release/bench/kernel_bench
#include <benchmark/benchmark.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/runtime/library_primitive.h"
#include "kernels/cpu/runtime/register_peak.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/dequantize.h"
#include "kernels/ops/head.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::bench {
namespace {

using kernels::Float32;
using kernels::Shape;
using kernels::Tensor;

constexpr int64_t kRows = 64;
constexpr int64_t kWidth = 2304;
// Weights are used in turn, like the layers of a network: together they do not fit a cache.
constexpr int kLayers = 6;

// The memory of all operands, on a device of one thread.
struct Operands {
  std::unique_ptr<kernels::Device> device = std::move(kernels::CreateCpuDevice({})).value();
  kernels::Buffer buffer = Take();
  Tensor x = At(0, kRows, kWidth), y = At(kRows * kWidth, kRows, kWidth);
  Tensor z = At(2 * kRows * kWidth, kRows, kWidth);
  Tensor bias = At(3 * kRows * kWidth, 1, kWidth);
  std::vector<Tensor> w;
  std::byte* workspace = nullptr;

  Operands() {
    int64_t next = 4 * kRows * kWidth;
    for (int i = 0; i < kLayers; ++i, next += kWidth * kWidth) {
      w.push_back(At(next, kWidth, kWidth));
    }
    workspace = reinterpret_cast<std::byte*>(At(next, 1, 1).data);
    auto* const values = reinterpret_cast<float*>(buffer.data());
    std::fill_n(values, buffer.bytes() / 4, 0.01F);
  }
  kernels::Buffer Take() {
    return std::move(device->Allocate((kLayers * kWidth * kWidth + 8 * kRows * kWidth) * 4 +
                                      (int64_t{64} << 20)))
        .value();
  }
  Tensor At(int64_t offset, int64_t rows, int64_t columns) const {
    return Float32(buffer.data() + offset * 4, Shape{rows, columns});
  }
};

// Runs `body` as a benchmark on the device's own thread.
void OnDevice(benchmark::State& state, Operands& operands, double flops, double bytes,
              const std::function<void(int layer)>& body) {
  operands.device->stream().Run([&] {
    int layer = 0;
    for (auto _ : state) {
      body(layer);
      layer = (layer + 1) % kLayers;
    }
  });
  const auto rate = [&](double per_iteration) {
    return benchmark::Counter(per_iteration, benchmark::Counter::kIsIterationInvariantRate);
  };
  if (flops > 0) state.counters["FLOP/s"] = rate(flops);
  if (bytes > 0) state.counters["B/s"] = rate(bytes);
}

constexpr double kProductFlops = 2.0 * kRows * kWidth * kWidth;

void BM_LinearForward(benchmark::State& state) {
  Operands o;
  auto op = std::move(o.device->ops().Create(kernels::LinearShape{kRows, kWidth, kWidth})).value();
  OnDevice(state, o, kProductFlops, 0, [&](int layer) {
    STAGECOACH_CHECK_OK(op->Forward(o.device->stream(), o.x, o.w[static_cast<size_t>(layer)],
                                    o.bias, {}, o.y, o.workspace));
  });
}

void BM_LinearBackwardInput(benchmark::State& state) {
  Operands o;
  auto op = std::move(o.device->ops().Create(kernels::LinearShape{kRows, kWidth, kWidth})).value();
  OnDevice(state, o, kProductFlops, 0, [&](int layer) {
    STAGECOACH_CHECK_OK(op->BackwardInput(o.device->stream(), o.y, {}, {},
                                          o.w[static_cast<size_t>(layer)], {}, o.x, o.workspace));
  });
}

// The argument says whether the gradient is accumulated.
void BM_LinearBackwardWeight(benchmark::State& state) {
  Operands o;
  auto op = std::move(o.device->ops().Create(kernels::LinearShape{kRows, kWidth, kWidth})).value();
  OnDevice(state, o, kProductFlops, 0, [&](int layer) {
    STAGECOACH_CHECK_OK(op->BackwardWeight(o.device->stream(), o.x, o.y,
                                           o.w[static_cast<size_t>(layer)], o.bias,
                                           state.range(0) != 0, o.workspace));
  });
}

// A quantized weight in place of each layer's.
struct QuantizedOperands : Operands {
  explicit QuantizedOperands(kernels::Quantization kind)
      : matrix{.kind = kind, .inputs = kWidth, .outputs = kWidth} {
    const std::vector<float> values(static_cast<size_t>(kWidth * kWidth), 0.01F);
    for (Tensor& weight : w) {
      weight = {weight.data, kernels::DType::kUint8, Shape{matrix.bytes()}};
      Quantize(matrix, values,
               absl::MakeSpan(static_cast<std::byte*>(weight.data),
                              static_cast<size_t>(weight.bytes())));
    }
  }

  kernels::QuantizedMatrix matrix;
};
kernels::Quantization QuantizationOf(int64_t argument) {
  return kernels::kAllQuantizations[static_cast<size_t>(argument)];
}
constexpr double kWeights = 1.0 * kWidth * kWidth;

// The argument is the kind of quantization. FLOP/s are values a second.
void BM_Dequantize(benchmark::State& state) {
  QuantizedOperands o(QuantizationOf(state.range(0)));
  auto op = std::move(o.device->ops().Create(kernels::DequantizeShape{o.matrix})).value();
  kernels::Buffer buffer = std::move(o.device->Allocate(kWidth * kWidth * 4)).value();
  const Tensor values = Float32(buffer.data(), Shape{kWidth, kWidth});
  OnDevice(state, o, kWeights, 0, [&](int layer) {
    STAGECOACH_CHECK_OK(op->Run(o.device->stream(), o.w[static_cast<size_t>(layer)], values));
  });
}

// As when texts are continued: one row, the argument says how the weight is quantized, -1 that it
// is not.
void BM_LinearForwardOfOneRow(benchmark::State& state) {
  QuantizedOperands quantized(QuantizationOf(std::max<int64_t>(state.range(0), 0)));
  Operands plain;
  Operands& o = state.range(0) < 0 ? plain : quantized;
  kernels::LinearShape shape = {
      .rows = 1, .inputs = kWidth, .outputs = kWidth, .independent_rows = true};
  if (state.range(0) >= 0) shape.quantized = quantized.matrix;
  auto op = std::move(o.device->ops().Create(shape)).value();
  OnDevice(state, o, 2.0 * kWeights, 0, [&](int layer) {
    STAGECOACH_CHECK_OK(op->Forward(o.device->stream(), o.At(0, 1, kWidth),
                                    o.w[static_cast<size_t>(layer)], o.bias, {},
                                    o.At(kWidth, 1, kWidth), o.workspace));
  });
}

// oneDNN's forms of the same products alone: the best of each kind is the one to compare ours with.
using dnnl::memory;
memory::desc Desc(int64_t rows, int64_t columns, memory::format_tag tag) {
  return {{rows, columns}, memory::data_type::f32, tag};
}

void RunPrimitive(benchmark::State& state, Operands& o, const dnnl::engine& engine,
                  const dnnl::primitive& primitive, memory::desc scratchpad,
                  std::vector<std::pair<int, std::pair<memory::desc, float*>>> arguments,
                  int weights_argument) {
  dnnl::stream stream(engine);
  std::unordered_map<int, memory> bound;
  for (auto& [argument, operand] : arguments) {
    bound.emplace(argument, memory(operand.first, engine, operand.second));
  }
  bound.emplace(DNNL_ARG_SCRATCHPAD, memory(scratchpad, engine, o.workspace));
  OnDevice(state, o, kProductFlops, 0, [&](int layer) {
    bound.at(weights_argument).set_data_handle(o.w[static_cast<size_t>(layer)].data);
    primitive.execute(stream, bound);
  });
}

// Arguments: 0 forward, 1 input gradient, 2 weight gradient; 0 weights (outputs, inputs), 1
// (inputs, outputs), 2 blocked as oneDNN prefers.
void BM_OneDnnInnerProduct(benchmark::State& state) {
  omp_set_num_threads(1);
  Operands o;
  using tag = memory::format_tag;
  const tag weight_tag[] = {tag::ab, tag::ba, tag::any};
  const dnnl::engine& engine = kernels::CpuEngine();
  const memory::desc x = Desc(kRows, kWidth, tag::ab);
  const memory::desc w = Desc(kWidth, kWidth, weight_tag[state.range(1)]);
  const dnnl::primitive_attr attributes = kernels::UserScratchpad();
  const auto forward = kernels::Describe<dnnl::inner_product_forward>(
      attributes, dnnl::prop_kind::forward_training, x, w, x);
  float* const xs = o.x.f32();
  float* const ys = o.y.f32();
  float* const ws = o.w[0].f32();
  switch (state.range(0)) {
    case 0:
      RunPrimitive(state, o, engine, dnnl::inner_product_forward(forward),
                   forward.scratchpad_desc(),
                   {{DNNL_ARG_SRC, {x, xs}},
                    {DNNL_ARG_WEIGHTS, {forward.weights_desc(), ws}},
                    {DNNL_ARG_DST, {x, ys}}},
                   DNNL_ARG_WEIGHTS);
      return;
    case 1: {
      const auto backward = kernels::DescribeBackward<dnnl::inner_product_backward_data>(
          attributes, forward, x, w, x);
      RunPrimitive(state, o, engine, dnnl::inner_product_backward_data(backward),
                   backward.scratchpad_desc(),
                   {{DNNL_ARG_DIFF_SRC, {x, xs}},
                    {DNNL_ARG_WEIGHTS, {backward.weights_desc(), ws}},
                    {DNNL_ARG_DIFF_DST, {x, ys}}},
                   DNNL_ARG_WEIGHTS);
      return;
    }
    default: {
      const auto backward = kernels::DescribeBackward<dnnl::inner_product_backward_weights>(
          attributes, forward, x, w, x);
      RunPrimitive(state, o, engine, dnnl::inner_product_backward_weights(backward),
                   backward.scratchpad_desc(),
                   {{DNNL_ARG_SRC, {x, xs}},
                    {DNNL_ARG_DIFF_WEIGHTS, {backward.diff_weights_desc(), ws}},
                    {DNNL_ARG_DIFF_DST, {x, ys}}},
                   DNNL_ARG_DIFF_WEIGHTS);
      return;
    }
  }
}

// Measures the stateless product. Arguments as above, with weights (inputs, outputs), and beta.
void BM_OneDnnSgemm(benchmark::State& state) {
  omp_set_num_threads(1);
  Operands o;
  const auto beta = static_cast<float>(state.range(1));
  OnDevice(state, o, kProductFlops, 0, [&](int layer) {
    float* const w = o.w[static_cast<size_t>(layer)].f32();
    float* const x = o.x.f32();
    float* const y = o.y.f32();
    const auto gemm = [&](char ta, char tb, int64_t m, int64_t n, int64_t k, const float* a,
                          const float* b, float* c) {
      STAGECOACH_CHECK(
          dnnl_sgemm(ta, tb, m, n, k, 1.0F, a, kWidth, b, kWidth, beta, c, kWidth) == dnnl_success,
          "sgemm");
    };
    switch (state.range(0)) {
      case 0:
        return gemm('N', 'N', kRows, kWidth, kWidth, x, w, y);
      case 1:
        return gemm('N', 'T', kRows, kWidth, kWidth, y, w, x);
      default:
        return gemm('T', 'N', kWidth, kWidth, kRows, x, y, w);
    }
  });
}

// 28 bytes per parameter are read and written.
constexpr int64_t kParameters = kWidth * kWidth;

void BM_AdamW(benchmark::State& state) {
  Operands o;
  const auto flat = [&](size_t i) { return Float32(o.w[i].data, Shape{kParameters}); };
  kernels::OptimizerOps& ops = o.device->ops().optimizer();
  const auto group = ops.CreateGroup(
      o.device->stream(), {{.value = flat(0), .gradient = flat(1), .states = {flat(2), flat(3)}}});
  STAGECOACH_CHECK_OK(group);
  OnDevice(state, o, 0, 28.0 * kParameters,
           [&](int) { STAGECOACH_CHECK_OK(ops.AdamW(o.device->stream(), {}, **group)); });
}

// Copies the same 28 bytes per parameter: 14 read and 14 written.
void BM_Copy28Bytes(benchmark::State& state) {
  Operands o;
  OnDevice(state, o, 0, 28.0 * kParameters, [&](int) {
    std::memcpy(o.w[0].data, o.w[4].data, 4 * kParameters);
    std::memcpy(o.w[1].data, o.w[5].data, 4 * kParameters);
    std::memcpy(o.w[2].data, o.w[3].data, 4 * kParameters);
    std::memcpy(o.w[0].data, o.w[3].data, 2 * kParameters);
    benchmark::ClobberMemory();
  });
}

void BM_LayerNormForward(benchmark::State& state) {
  Operands o;
  auto op = std::move(o.device->ops().Create(kernels::LayerNormShape{kRows, kWidth})).value();
  OnDevice(state, o, 0, 8.0 * kRows * kWidth, [&](int) {
    STAGECOACH_CHECK_OK(op->Forward(o.device->stream(), o.x, o.bias, o.bias, {}, o.z, o.y));
  });
}

// Arguments: positions, heads, kv heads, head size, whether positions are rotary, 0 forward, 1
// backward. Only useful work counts: 2 products forward and 5 backward, of the scores that the
// softmax sees.
void BM_Attention(benchmark::State& state) {
  Operands o;
  const int64_t T = state.range(0), H = state.range(1), G = state.range(2), D = state.range(3);
  const bool is_backward = state.range(5) != 0;
  const int64_t B = std::max<int64_t>(kWidth * kWidth / (T * (H + 2 * G) * D), 1);
  auto op = std::move(o.device->ops().Create(kernels::AttentionShape{
                          B, T, H, G, D, state.range(4) != 0 ? 10000.0F : 0.0F}))
                .value();
  const double scores = static_cast<double>(B * H) * static_cast<double>(T * (T + 1)) / 2.0;
  OnDevice(
      state, o, scores * 2.0 * static_cast<double>(D) * (is_backward ? 5.0 : 2.0), 0, [&](int) {
        kernels::Stream& stream = o.device->stream();
        if (is_backward) {
          STAGECOACH_CHECK_OK(
              op->BackwardInput(stream, o.w[0], o.w[1], {}, o.w[2], o.w[3], o.w[4], o.workspace));
        } else {
          STAGECOACH_CHECK_OK(op->Forward(stream, o.w[1], {}, o.w[3], o.w[2], o.workspace));
        }
      });
}

// The convolutions of a ResNet-18 for images of 32 x 32, at 32 samples: inputs, side, outputs,
// kernel, stride.
constexpr int64_t kConvolutions[][5] = {
    {3, 32, 64, 3, 1},   {64, 32, 64, 3, 1},  {64, 32, 128, 3, 2}, {128, 16, 128, 3, 1},
    {256, 8, 256, 3, 1}, {512, 4, 512, 3, 1}, {256, 8, 512, 1, 2}};

// Arguments: the index of a convolution; 0 forward, 1 input gradient, 2 weight gradient,
// accumulating.
void BM_Convolution(benchmark::State& state) {
  Operands o;
  const auto& [inputs, side, outputs, kernel, stride] = kConvolutions[state.range(0)];
  const kernels::ConvolutionShape shape = {.samples = 32,
                                           .inputs = inputs,
                                           .height = side,
                                           .width = side,
                                           .outputs = outputs,
                                           .kernel = kernel,
                                           .stride = stride,
                                           .padding = kernel / 2,
                                           .has_bias = false};
  auto op = std::move(o.device->ops().Create(shape)).value();
  STAGECOACH_CHECK(op->workspace_bytes() <= int64_t{64} << 20, "needs more scratch");
  const Tensor x = o.w[0], y = o.w[1], w = o.w[2];
  const Tensor dw = Float32(o.w[3].data, Shape{outputs, inputs, kernel, kernel});
  const double flops = 2.0 * static_cast<double>(shape.samples * shape.output_height() *
                                                 shape.output_width() * dw.elements());
  state.SetLabel(absl::StrCat(inputs, "x", side, "x", side, " -> ", outputs, ", ", kernel, "x",
                              kernel, "/", stride));
  OnDevice(state, o, flops, 0, [&](int) {
    kernels::Stream& stream = o.device->stream();
    switch (state.range(1)) {
      case 0:
        STAGECOACH_CHECK_OK(op->Forward(stream, x, w, {}, y, o.workspace));
        return;
      case 1:
        STAGECOACH_CHECK_OK(op->BackwardInput(stream, y, w, {}, x, o.workspace));
        return;
      default:
        STAGECOACH_CHECK_OK(op->BackwardWeight(stream, x, y, dw, {}, true, o.workspace));
    }
  });
}

// Measures GPT-2's head with its loss. Arguments: rows; 0 forward, 1 input gradient, 2 weight
// gradient, 3 both gradients in one pass. All computed products count.
void BM_Head(benchmark::State& state) {
  constexpr int64_t kFeatures = 768, kClasses = 50257;
  const int64_t R = state.range(0);
  Operands o;
  auto op = std::move(o.device->ops().Create(kernels::HeadShape{R, kFeatures, kClasses})).value();
  const int64_t w_bytes = kClasses * kFeatures * 4, x_bytes = R * kFeatures * 4;
  const kernels::Buffer buffer =
      std::move(o.device->Allocate(2 * w_bytes + 2 * x_bytes + 64 * R + 4096 +
                                   op->statistics_bytes() + op->workspace_bytes()))
          .value();
  std::byte* next = buffer.data();
  const auto take = [&next](int64_t bytes) {
    return std::exchange(next, next + (bytes + 63) / 64 * 64);
  };
  const Tensor w = Float32(take(w_bytes), Shape{kClasses, kFeatures});
  const Tensor dw = Float32(take(w_bytes), w.shape);
  const Tensor x = Float32(take(x_bytes), Shape{R, kFeatures});
  const Tensor dx = Float32(take(x_bytes), x.shape);
  const Tensor labels = {take(4 * R), kernels::DType::kInt32, Shape{R}};
  const Tensor result = {take(16), kernels::DType::kFloat64, Shape{2}};
  std::byte* const statistics = take(op->statistics_bytes());
  std::byte* const workspace = take(0);
  // These values have a softmax that is neither flat nor a single peak.
  for (const Tensor& tensor : {w, x}) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      tensor.f32()[i] = 0.1F * static_cast<float>(i * 7919 % 31 - 15);
    }
  }
  std::fill_n(dw.f32(), dw.elements(), 0.0F);
  for (int64_t r = 0; r < R; ++r) labels.i32()[r] = static_cast<int32_t>(r * 7919 % kClasses);
  const kernels::LossTerms terms = {.valid_samples = R};
  o.device->stream().Run([&] {
    STAGECOACH_CHECK_OK(op->BackwardInput(o.device->stream(), x, w, labels, &terms, result, dx,
                                          statistics, workspace));
  });
  const double products[] = {1, 2, 2, 3};
  const double flops =
      products[state.range(1)] * 2.0 * static_cast<double>(R * kFeatures * kClasses);
  OnDevice(state, o, flops, 0, [&](int) {
    kernels::Stream& stream = o.device->stream();
    switch (state.range(1)) {
      case 0:
        return STAGECOACH_CHECK_OK(
            op->Forward(stream, x, w, labels, &terms, {}, result, workspace));
      case 1:
        return STAGECOACH_CHECK_OK(
            op->BackwardInput(stream, x, w, labels, &terms, result, dx, statistics, workspace));
      case 2:
        return STAGECOACH_CHECK_OK(op->BackwardWeight(stream, x, w, statistics, dw,
                                                      /*accumulate=*/true, workspace));
      default:
        return STAGECOACH_CHECK_OK(op->Backward(stream, x, w, labels, &terms, result, dx, dw,
                                                /*accumulate=*/true, workspace));
    }
  });
}

// Measures what one thread of the machine can do, in float32 or bfloat16.
void BM_RegisterOnlyPeak(benchmark::State& state) {
  const auto precision =
      state.range(0) == 0 ? kernels::Precision::kFloat32 : kernels::Precision::kBfloat16;
  double peak = 0.0;
  for (auto _ : state) peak = kernels::RegisterPeakFlops(1, precision);
  state.counters["FLOP/s"] = benchmark::Counter(peak);
}

BENCHMARK(BM_RegisterOnlyPeak)->Arg(0)->Arg(1)->Iterations(1);
BENCHMARK(BM_LinearForward)->UseRealTime();
BENCHMARK(BM_LinearBackwardInput)->UseRealTime();
BENCHMARK(BM_LinearBackwardWeight)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(BM_Dequantize)->DenseRange(0, 2)->UseRealTime();
BENCHMARK(BM_LinearForwardOfOneRow)->DenseRange(-1, 2)->UseRealTime();
BENCHMARK(BM_Attention)
    ->ArgsProduct({{256, 1024}, {12}, {12}, {64}, {0}, {0, 1}})
    ->ArgsProduct({{256}, {8}, {2}, {128}, {1}, {0, 1}})
    ->ArgsProduct({{64}, {12}, {12}, {32}, {0}, {0, 1}})
    ->UseRealTime();
BENCHMARK(BM_Convolution)->ArgsProduct({{0, 1, 2, 3, 4, 5, 6}, {0, 1, 2}})->UseRealTime();
BENCHMARK(BM_Head)->ArgsProduct({{256}, {1, 2, 3, 0}})->UseRealTime();
BENCHMARK(BM_OneDnnInnerProduct)->ArgsProduct({{0, 1, 2}, {0, 1, 2}})->UseRealTime();
BENCHMARK(BM_OneDnnSgemm)->ArgsProduct({{0, 1, 2}, {0, 1}})->UseRealTime();
BENCHMARK(BM_AdamW)->UseRealTime();
BENCHMARK(BM_Copy28Bytes)->UseRealTime();
BENCHMARK(BM_LayerNormForward)->UseRealTime();

}  // namespace
}  // namespace stagecoach::bench

BENCHMARK_MAIN();
