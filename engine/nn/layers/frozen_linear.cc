#include "engine/nn/layers/frozen_linear.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/last_axis.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/columns.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

using partition::AlignTensor;

// The matrices of one adapter, with u = dropout(x) A.   x (R, I)   u, du (R, rank)   dz (R,
// outputs)
struct Adapter {
  LinearAdapter options;
  std::unique_ptr<kernels::LinearOp> down, up;  // by A and by B
  std::unique_ptr<kernels::ColumnsOp> columns;  // of all outputs
  size_t first_parameter = 0;                   // A; B follows
  Shape narrow, wide;                           // of u and of dz
  int64_t u = 0, du = 0;                        // in the weight stash; in the gradient stash
};

// x w + b is one product, and each adapter two narrow ones beside it, whose result is added to some
// of the columns. F keeps u for dB, and B keeps du for dA. What is as wide as x or y is recomputed.
// A quantized weight is expanded in F, unless the operation takes it as it is, and once more in B.
class FrozenLinearLayer final : public Layer {
 public:
  explicit FrozenLinearLayer(const LinearOptions& options) : options_(options) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ASSIGN_OR_RETURN(const LastAxis axis, AlongLastAxis("linear", context));
    if (!context.is_frozen) {
      return absl::InvalidArgumentError(
          absl::StrCat("linear: has ", has_adapters() ? "adapters" : "a quantized weight",
                       ", so the model's other parameters must be frozen"));
    }
    kernels::Ops& ops = context.device.ops();
    const int64_t inputs = axis.features, outputs = options_.outputs;
    type_ = context.device.activation_type();
    x_ = Shape{axis.rows, inputs};
    y_ = Shape{axis.rows, outputs};
    RETURN_IF_ERROR(CreateBase(context));
    elementwise_ = &ops.elementwise();
    if (has_activation()) {
      ASSIGN_OR_RETURN(activation_, ops.Create(kernels::ActivationShape{axis.rows, outputs,
                                                                        options_.activation}));
    }
    if (has_adapters() && options_.adapter_dropout > 0.0F) {
      random_stream_ = context.random_stream;
      ASSIGN_OR_RETURN(dropout_, ops.Create(kernels::DropoutShape{context.rows,
                                                                  axis.rows / context.rows * inputs,
                                                                  options_.adapter_dropout}));
    }
    LayerSpec spec;
    spec.output = axis.WithFeatures(outputs);
    spec.parameters = {{"weight", Shape{inputs, outputs}, InitialWeight(options_, inputs), true}};
    if (options_.has_bias) {
      spec.parameters.push_back({"bias", Shape{outputs}, Init::Constant(0.0F), false});
    }
    PlaceGradient(spec.memory);
    if (!has_adapters()) spec.memory.input_last_use = LastUse::kForward;
    spec.memory.workspace_bytes = base_->workspace_bytes();
    for (const LinearAdapter& own : options_.adapters) {
      RETURN_IF_ERROR(AddAdapter(context, own, spec));
    }
    spec.parameters.front().quantized = quantized_;
    LayOutWorkspace(spec.memory);
    SetWork(context, spec);
    spec.description = Description();
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    const Tensor z = keeps_z() ? At(args.weight_stash, z_, y_) : args.y;
    RETURN_IF_ERROR(base_->Forward(args.stream, args.x, args.parameters[0], BiasOf(args), {}, z,
                                   args.workspace));
    ASSIGN_OR_RETURN(const Tensor x, Dropped(args));
    for (const Adapter& adapter : adapters_) {
      const Tensor u = At(args.weight_stash, adapter.u, adapter.narrow);
      const Tensor part = At(args.workspace, like_y_, adapter.wide);
      RETURN_IF_ERROR(
          adapter.down->Forward(args.stream, x, A(args, adapter), {}, {}, u, args.workspace));
      RETURN_IF_ERROR(
          adapter.up->Forward(args.stream, u, B(args, adapter), {}, {}, part, args.workspace));
      RETURN_IF_ERROR(adapter.columns->Add(args.stream, part, adapter.options.scale, z));
    }
    return has_activation() ? activation_->Forward(args.stream, z, {}, args.y) : absl::OkStatus();
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return RunBackward(args, /*is_input=*/true, /*is_weight=*/false);
  }
  absl::Status BackwardWeight(const LayerArgs& args) override {
    return RunBackward(args, /*is_input=*/false, /*is_weight=*/true);
  }
  absl::Status Backward(const LayerArgs& args) override {
    return RunBackward(args, /*is_input=*/true, /*is_weight=*/true);
  }

 private:
  bool has_adapters() const { return !options_.adapters.empty(); }
  bool has_activation() const { return options_.activation != Activation::kNone; }
  bool keeps_z() const { return KeepsZ(options_.activation); }

  Tensor At(std::byte* area, int64_t offset, const Shape& shape) const {
    return {area + offset, type_, shape};
  }
  int64_t BytesOf(const Shape& shape) const {
    return AlignTensor(Tensor{nullptr, type_, shape}.bytes());
  }
  Tensor BiasOf(const LayerArgs& args) const {
    return options_.has_bias ? args.parameters[1] : Tensor{};
  }
  static const Tensor& A(const LayerArgs& args, const Adapter& adapter) {
    return args.parameters[adapter.first_parameter];
  }
  static const Tensor& B(const LayerArgs& args, const Adapter& adapter) {
    return args.parameters[adapter.first_parameter + 1];
  }

  absl::StatusOr<std::unique_ptr<kernels::LinearOp>> CreateProduct(const LayerContext& context,
                                                                   int64_t from, int64_t to) const {
    return context.device.ops().Create(
        kernels::LinearShape{.rows = x_.dim(0),
                             .inputs = from,
                             .outputs = to,
                             .has_bias = false,
                             .independent_rows = context.rows_are_sequences});
  }

  absl::Status CreateBase(const LayerContext& context) {
    kernels::LinearShape shape = {.rows = x_.dim(0),
                                  .inputs = x_.dim(1),
                                  .outputs = y_.dim(1),
                                  .has_bias = options_.has_bias,
                                  .independent_rows = context.rows_are_sequences,
                                  .forward_only = context.cached_positions > 0,
                                  .weight_is_constant = context.cached_positions > 0};
    if (options_.quantization.has_value()) {
      quantized_ = {*options_.quantization, shape.inputs, shape.outputs, options_.parts};
      shape.quantized = quantized_;
    }
    ASSIGN_OR_RETURN(base_, context.device.ops().Create(shape));
    return absl::OkStatus();
  }

  absl::Status AddAdapter(const LayerContext& context, const LinearAdapter& own, LayerSpec& spec) {
    const int64_t rows = x_.dim(0), inputs = x_.dim(1);
    Adapter& adapter = adapters_.emplace_back();
    adapter.options = own;
    ASSIGN_OR_RETURN(adapter.down, CreateProduct(context, inputs, own.rank));
    ASSIGN_OR_RETURN(adapter.up, CreateProduct(context, own.rank, own.outputs));
    ASSIGN_OR_RETURN(adapter.columns, context.device.ops().Create(kernels::ColumnsShape{
                                          rows, options_.outputs, own.first, own.outputs}));
    adapter.first_parameter = spec.parameters.size();
    const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(inputs)));
    spec.parameters.push_back({.name = absl::StrCat(own.name, ".lora_A"),
                               .shape = Shape{inputs, own.rank},
                               .init = Init::Uniform(-bound, bound),
                               .is_adapter = true});
    spec.parameters.push_back({.name = absl::StrCat(own.name, ".lora_B"),
                               .shape = Shape{own.rank, own.outputs},
                               .init = Init::Constant(0.0F),
                               .is_adapter = true});
    adapter.narrow = Shape{rows, own.rank};
    adapter.wide = Shape{rows, own.outputs};
    partition::LayerMemory& memory = spec.memory;
    adapter.u = std::exchange(memory.weight_stash_bytes,
                              memory.weight_stash_bytes + BytesOf(adapter.narrow));
    adapter.du = std::exchange(memory.gradient_stash_bytes,
                               memory.gradient_stash_bytes + BytesOf(adapter.narrow));
    memory.workspace_bytes = std::max(
        {memory.workspace_bytes, adapter.down->workspace_bytes(), adapter.up->workspace_bytes()});
    return absl::OkStatus();
  }

  // The products' own scratch comes first, which includes a weight that is expanded, then
  // dropout(x) or dx, then y or dz of an adapter.
  void LayOutWorkspace(partition::LayerMemory& memory) {
    int64_t widest = 0;
    for (const Adapter& adapter : adapters_) widest = std::max(widest, BytesOf(adapter.wide));
    like_x_ = AlignTensor(memory.workspace_bytes);
    like_y_ = like_x_ + (has_adapters() ? BytesOf(x_) : 0);
    memory.workspace_bytes = like_y_ + widest;
  }

  std::string Description() const {
    std::string text = absl::StrCat("linear ", x_.dim(1), " -> ", y_.dim(1));
    if (has_activation()) {
      absl::StrAppend(&text, ", ", kernels::ActivationName(options_.activation));
    }
    if (!options_.has_bias) absl::StrAppend(&text, ", no bias");
    if (quantized_.has_value()) {
      absl::StrAppend(&text, ", ", QuantizationName(quantized_->kind));
    }
    const char* separator = ", adapters ";
    for (const LinearAdapter& adapter : options_.adapters) {
      absl::StrAppend(&text, std::exchange(separator, ", "), adapter.name, " rank ", adapter.rank);
    }
    return text;
  }

  // W needs dz: dy without an activation, otherwise as in a linear layer without adapters.
  void PlaceGradient(partition::LayerMemory& memory) {
    if (!has_activation()) {
      memory.output_gradient_last_use = LastUse::kBackwardWeight;
    } else if (keeps_z()) {
      z_ = std::exchange(memory.weight_stash_bytes, memory.weight_stash_bytes + BytesOf(y_));
    } else {
      memory.output_last_use = LastUse::kBackwardInput;
      z_ = std::exchange(memory.gradient_stash_bytes, memory.gradient_stash_bytes + BytesOf(y_));
    }
  }
  Tensor Dz(const LayerArgs& args) const {
    if (!has_activation()) return args.dy;
    return At(keeps_z() ? args.weight_stash : args.gradient_stash, z_, y_);
  }

  absl::Status ApplyDropout(const LayerArgs& args, const Tensor& x, const Tensor& y) const {
    const SampleNumbers* const numbers = args.call.numbers;
    return dropout_->Apply(args.stream,
                           {.seed = args.call.seed,
                            .stream = random_stream_,
                            .first_sample = numbers == nullptr ? nullptr : &numbers->first_sample},
                           x, y);
  }
  bool drops(const LayerArgs& args) const { return dropout_ != nullptr && args.call.is_training; }
  // Returns what the adapters take.
  absl::StatusOr<Tensor> Dropped(const LayerArgs& args) const {
    if (!drops(args)) return args.x;
    const Tensor dropped = At(args.workspace, like_x_, x_);
    RETURN_IF_ERROR(ApplyDropout(args, args.x, dropped));
    return dropped;
  }

  absl::Status RunBackward(const LayerArgs& args, bool is_input, bool is_weight) const {
    const Tensor dz = Dz(args);
    if (is_input && has_activation()) {
      RETURN_IF_ERROR(
          activation_->BackwardInput(args.stream, args.dy, keeps_z() ? dz : args.y, dz));
    }
    if (is_input && !args.dx.empty()) {
      RETURN_IF_ERROR(base_->BackwardInput(args.stream, dz, {}, {}, args.parameters[0], {}, args.dx,
                                           args.workspace));
    }
    for (const Adapter& adapter : adapters_) {
      const Tensor part = At(args.workspace, like_y_, adapter.wide);
      RETURN_IF_ERROR(adapter.columns->Take(args.stream, dz, adapter.options.scale, part));
      if (is_input) RETURN_IF_ERROR(BackwardInputOf(adapter, args, part));
      if (!is_weight) continue;
      const Tensor u = At(args.weight_stash, adapter.u, adapter.narrow);
      RETURN_IF_ERROR(adapter.up->BackwardWeight(args.stream, u, part,
                                                 args.gradients[adapter.first_parameter + 1], {},
                                                 args.accumulate, args.workspace));
    }
    if (!is_weight) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Tensor x, Dropped(args));
    for (const Adapter& adapter : adapters_) {
      const Tensor du = At(args.gradient_stash, adapter.du, adapter.narrow);
      RETURN_IF_ERROR(adapter.down->BackwardWeight(args.stream, x, du,
                                                   args.gradients[adapter.first_parameter], {},
                                                   args.accumulate, args.workspace));
    }
    return absl::OkStatus();
  }

  // `part`: dz of the adapter, scaled.
  absl::Status BackwardInputOf(const Adapter& adapter, const LayerArgs& args,
                               const Tensor& part) const {
    const Tensor du = At(args.gradient_stash, adapter.du, adapter.narrow);
    RETURN_IF_ERROR(adapter.up->BackwardInput(args.stream, part, {}, {}, B(args, adapter), {}, du,
                                              args.workspace));
    if (args.dx.empty()) return absl::OkStatus();
    const Tensor dx = At(args.workspace, like_x_, x_);
    RETURN_IF_ERROR(adapter.down->BackwardInput(args.stream, du, {}, {}, A(args, adapter), {}, dx,
                                                args.workspace));
    if (drops(args)) RETURN_IF_ERROR(ApplyDropout(args, dx, dx));
    const Tensor sum{args.dx.data, type_, x_};
    return elementwise_->Add(args.stream, sum, dx, sum);
  }

  void SetWork(const LayerContext& context, LayerSpec& spec) const {
    const auto rows = static_cast<double>(x_.dim(0)), inputs = static_cast<double>(x_.dim(1));
    const auto outputs = static_cast<double>(options_.outputs);
    const double w = context.value_bytes();
    const double values = w * inputs * outputs;
    const double stored =
        quantized_.has_value() ? static_cast<double>(quantized_->bytes()) : values;
    spec.forward = {2.0 * rows * inputs * outputs, w * rows * (inputs + outputs) + stored};
    if (has_activation()) spec.forward.bytes += 2.0 * w * rows * outputs;
    spec.backward_input = spec.forward;
    if (base_->expands_weight()) spec.forward.bytes += 2.0 * values;
    if (quantized_.has_value()) spec.backward_input.bytes += 2.0 * values;
    const double dropped = dropout_ == nullptr ? 0.0 : 2.0 * w * rows * inputs;
    for (const Adapter& adapter : adapters_) {
      const auto rank = static_cast<double>(adapter.options.rank);
      const auto own = static_cast<double>(adapter.options.outputs);
      const double products = 2.0 * rows * rank * (inputs + own);
      const double wide = w * rows * (inputs + own);
      spec.forward.flops += products;
      spec.forward.bytes += wide + 3.0 * w * rows * own;
      spec.backward_input.flops += products;
      spec.backward_input.bytes += wide + w * rows * (2.0 * own + 3.0 * inputs) + dropped;
      spec.backward_weight.flops += products;
      spec.backward_weight.bytes += wide + 2.0 * w * rows * own;
      spec.backward_shared.bytes += 2.0 * w * rows * own;
    }
    spec.forward.bytes += dropped;
    spec.backward_weight.bytes += dropped;
  }

  const LinearOptions options_;
  kernels::DType type_ = kernels::DType::kFloat32;
  Shape x_, y_;  // of the products
  std::unique_ptr<kernels::LinearOp> base_;
  std::vector<Adapter> adapters_;
  std::unique_ptr<kernels::ActivationOp> activation_;
  std::unique_ptr<kernels::DropoutOp> dropout_;
  kernels::ElementwiseOps* elementwise_ = nullptr;
  std::optional<kernels::QuantizedMatrix> quantized_;
  uint64_t random_stream_ = 0;
  int64_t like_x_ = 0, like_y_ = 0;  // in the workspace
  int64_t z_ = 0;                    // of z, which dz replaces, or of dz alone
};

}  // namespace

Init InitialWeight(const LinearOptions& options, int64_t inputs) {
  if (options.deviation.has_value()) return Init::Normal(0.0F, *options.deviation);
  const bool is_relu = options.activation == Activation::kRelu;
  const double variance = (is_relu ? 2.0 : 1.0) / static_cast<double>(inputs);
  const auto bound = static_cast<float>(options.gain * std::sqrt(3.0 * variance));
  return Init::Uniform(-bound, bound);
}

LayerFactory FrozenLinear(const LinearOptions& options) {
  return LayerOf<FrozenLinearLayer>(options);
}

}  // namespace stagecoach::engine
