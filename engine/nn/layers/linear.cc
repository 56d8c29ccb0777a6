#include "engine/nn/layers/linear.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/fusion/norm_fusion.h"
#include "engine/nn/fusion/tail_fusion.h"
#include "engine/nn/last_axis.h"
#include "engine/nn/layers/frozen_linear.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class LinearLayer final : public Layer, public TailFusion, public NormFusion {
 public:
  explicit LinearLayer(const LinearOptions& options)
      : options_(options), outputs_(options.outputs), activation_(options.activation) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ASSIGN_OR_RETURN(const LastAxis axis, AlongLastAxis("linear", context));
    const int64_t inputs = axis.features;
    if (outputs_ < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("linear: outputs must be at least 1, not ", outputs_));
    }
    const bool generates = context.cached_positions > 0;
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::LinearShape{.rows = axis.rows,
                                                   .inputs = inputs,
                                                   .outputs = outputs_,
                                                   .activation = activation_,
                                                   .has_bias = options_.has_bias,
                                                   .independent_rows = context.rows_are_sequences,
                                                   .forward_only = generates,
                                                   .weight_is_constant = generates}));
    type_ = context.device.activation_type();
    shape_ = Shape{axis.rows, outputs_};
    const int64_t output_bytes = Tensor{nullptr, type_, shape_}.bytes();
    LayerSpec spec;
    spec.description = absl::StrCat("linear ", inputs, " -> ", outputs_);
    if (activation_ != Activation::kNone) {
      absl::StrAppend(&spec.description, ", ", kernels::ActivationName(activation_));
    }
    if (!options_.has_bias) absl::StrAppend(&spec.description, ", no bias");
    spec.output = axis.WithFeatures(outputs_);
    spec.parameters = {{"weight", Shape{inputs, outputs_}, InitialWeight(options_, inputs), true}};
    if (options_.has_bias) {
      spec.parameters.push_back({"bias", Shape{outputs_}, Init::Constant(0.0F), false});
    }
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.aside_bytes = op_->aside_bytes();
    if (context.is_frozen) spec.memory.input_last_use = LastUse::kForward;
    // BackwardWeight needs dz. It is dy itself without an activation; otherwise it takes the place
    // of z, if that is kept, since BackwardInput is the last to read z.
    if (activation_ == Activation::kNone) {
      spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    } else if (KeepsZ(activation_)) {
      spec.memory.weight_stash_bytes = output_bytes;
    } else {
      spec.memory.output_last_use = LastUse::kBackwardInput;
      spec.memory.gradient_stash_bytes = output_bytes;
    }
    const auto rows = static_cast<double>(axis.rows);
    const double product = 2.0 * rows * static_cast<double>(inputs * outputs_);
    const double bytes =
        static_cast<double>(SizeOf(type_)) *
        (static_cast<double>(inputs * outputs_) + rows * static_cast<double>(inputs + outputs_));
    spec.forward = spec.backward_input = {product, bytes};
    spec.backward_weight = {product, 2.0 * bytes};  // reads and writes the gradient
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    return op_->Forward(args.stream, args.x, args.parameters[0], BiasOf(args.parameters), Z(args),
                        args.y, args.workspace);
  }

  bool takes_tail() const override { return op_->takes_neighbors(); }
  bool takes_norm() const override { return op_->takes_neighbors(); }

  absl::Status ForwardWithTail(const LayerArgs& args, const Tail& tail) override {
    return ForwardWithNeighbors(args, {.addend = tail.addend, .has_relu = tail.has_relu});
  }

  absl::Status ForwardWithNorm(const LayerArgs& args, const kernels::InputNorm& norm,
                               const Tail& tail) override {
    return ForwardWithNeighbors(args,
                                {.norm = norm, .addend = tail.addend, .has_relu = tail.has_relu});
  }

  // Not called: a product that takes a tail has no backward passes.
  absl::Status BackwardWithTail(const LayerArgs& /*args*/, const TailGradient& /*tail*/) override {
    return absl::UnimplementedError("linear: has a tail in forward passes alone");
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return op_->BackwardInput(args.stream, args.dy, args.y, Z(args), args.parameters[0], Dz(args),
                              args.dx, args.workspace);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return op_->BackwardWeight(args.stream, args.x, Dz(args), args.gradients[0],
                               BiasOf(args.gradients), args.accumulate, args.workspace);
  }

  absl::Status Backward(const LayerArgs& args) override {
    return op_->Backward(args.stream, args.dy, args.x, args.y, Z(args), args.parameters[0],
                         Dz(args), args.dx, args.gradients[0], BiasOf(args.gradients),
                         args.accumulate, args.workspace, args.aside);
  }

 private:
  absl::Status ForwardWithNeighbors(const LayerArgs& args,
                                    const kernels::LinearNeighbors& neighbors) {
    return op_->ForwardWithNeighbors(args.stream, neighbors, args.x, args.parameters[0],
                                     BiasOf(args.parameters), Z(args), args.y, args.workspace);
  }

  Tensor BiasOf(absl::Span<const Tensor> tensors) const {
    return options_.has_bias ? tensors[1] : Tensor{};
  }
  Tensor Z(const LayerArgs& args) const {
    return KeepsZ(activation_) ? Tensor{args.weight_stash, type_, shape_} : Tensor{};
  }
  Tensor Dz(const LayerArgs& args) const {
    if (activation_ == Activation::kNone) return args.dy;
    return {KeepsZ(activation_) ? args.weight_stash : args.gradient_stash, type_, shape_};
  }

  const LinearOptions options_;
  const int64_t outputs_;
  const Activation activation_;
  kernels::DType type_ = kernels::DType::kFloat32;
  Shape shape_;  // (rows of the product, outputs)
  std::unique_ptr<kernels::LinearOp> op_;
};

}  // namespace

LayerFactory Linear(const LinearOptions& options) {
  const bool is_frozen = !options.adapters.empty() || options.quantization.has_value();
  return is_frozen ? FrozenLinear(options) : LayerOf<LinearLayer>(options);
}

LayerFactory Linear(int64_t outputs, Activation activation, float gain, bool has_bias) {
  return Linear(LinearOptions{
      .outputs = outputs, .activation = activation, .has_bias = has_bias, .gain = gain});
}

const LayerType kLinearType = {
    .name = "linear",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      LinearOptions options;
      ASSIGN_OR_RETURN(options.outputs, ParseFileCount("outputs", entry));
      std::vector<std::string> activations;
      for (const Activation known : kernels::kAllActivations) {
        activations.emplace_back(ActivationName(known));
      }
      ASSIGN_OR_RETURN(
          const std::string name,
          entry.reader.OptionalString("activation", ActivationName(options.activation)));
      ASSIGN_OR_RETURN(const size_t choice,
                       ChooseAmong(activations, "activation", name, entry.reader));
      options.activation = kernels::kAllActivations[choice];
      ASSIGN_OR_RETURN(options.has_bias, entry.reader.OptionalBool("bias", true));
      if (entry.reader.Has("deviation")) {
        RETURN_IF_ERROR(ParseDeviation("deviation", entry.reader, options.deviation.emplace()));
      }
      RETURN_IF_ERROR(CheckParts(entry.reader, options.outputs));
      options.quantization = entry.quantization;
      for (const AdaptedOutputs& part :
           AdaptedOutputsOf(entry.list, entry.index, options.outputs)) {
        if (entry.quantization.has_value()) options.parts.push_back(part.outputs);
        if (entry.lora == nullptr || !entry.lora->adapts(part.name)) continue;
        options.adapters.push_back(
            {part.name, part.first, part.outputs, entry.lora->rank, entry.lora->scale()});
      }
      if (entry.lora != nullptr) {
        options.adapter_dropout = static_cast<float>(entry.lora->dropout);
      }
      if (options.parts.size() == 1) options.parts.clear();
      layer.factories = {Linear(options)};
      layer.output_of = [outputs = options.outputs](const Shape& input) {
        return WithLastAxis(input, outputs);
      };
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
