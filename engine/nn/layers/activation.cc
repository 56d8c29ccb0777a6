#include "engine/nn/layers/activation.h"

#include <array>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "engine/nn/fusion/tail_fusion.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class ActivationLayer final : public Layer, public PlainActivation {
 public:
  explicit ActivationLayer(Activation activation) : activation_(activation) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    const int64_t features = context.input.elements();
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::ActivationShape{context.rows, features, activation_}));
    LayerSpec spec;
    spec.description = kernels::ActivationName(activation_);
    spec.output = context.input;
    // One of the two is kept, for the derivative.
    spec.memory.input_last_use = KeepsZ(activation_) ? LastUse::kBackwardInput : LastUse::kForward;
    spec.memory.output_last_use = KeepsZ(activation_) ? LastUse::kForward : LastUse::kBackwardInput;
    const auto elements = static_cast<double>(context.rows * features);
    const double w = context.value_bytes();
    spec.forward = {elements, 2.0 * w * elements};
    spec.backward_input = {elements, 3.0 * w * elements};
    return spec;
  }

  bool is_relu() const override { return activation_ == Activation::kRelu; }

  TakesImages takes_images() const override { return TakesImages::kInAnyOrder; }

  absl::Status Forward(const LayerArgs& args) override {
    return op_->Forward(args.stream, args.x, {}, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    return op_->BackwardInput(args.stream, args.dy, KeepsZ(activation_) ? args.x : args.y, args.dx);
  }

 private:
  const Activation activation_;
  std::unique_ptr<kernels::ActivationOp> op_;
};

}  // namespace

LayerFactory Activate(Activation activation) { return LayerOf<ActivationLayer>(activation); }

namespace {

template <Activation kActivation>
absl::Status ParseActivation(LayerEntry&, ParsedLayer& layer) {
  layer.factories = {Activate(kActivation)};
  return absl::OkStatus();
}

// The first of kAllActivations is kNone.
template <size_t... kIndices>
constexpr auto TypesOfActivations(std::index_sequence<kIndices...>) {
  return std::array<LayerType, sizeof...(kIndices)>{
      {{ActivationName(kernels::kAllActivations[kIndices + 1]),
        ParseActivation<kernels::kAllActivations[kIndices + 1]>}...}};
}

}  // namespace

const std::array<LayerType, kernels::kAllActivations.size() - 1> kActivationTypes =
    TypesOfActivations(std::make_index_sequence<kernels::kAllActivations.size() - 1>());

}  // namespace stagecoach::engine
