#include "engine/nn/layers/swiglu.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/last_axis.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/swiglu.h"

namespace stagecoach::engine {
namespace {

class SwiGluLayer final : public Layer {
 public:
  explicit SwiGluLayer(kernels::GluGate gate)
      : gate_(gate), name_(gate == kernels::GluGate::kSilu ? "swiglu" : "geglu") {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ASSIGN_OR_RETURN(const LastAxis axis, AlongLastAxis(name_, context));
    if (axis.features % 2 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": takes samples whose last axis is even, rather than of shape ",
                       context.input.ToString()));
    }
    const int64_t features = axis.features / 2;
    ASSIGN_OR_RETURN(op_,
                     context.device.ops().Create(kernels::SwiGluShape{axis.rows, features, gate_}));
    LayerSpec spec;
    spec.description = absl::StrCat(name_, " ", axis.features, " -> ", features);
    spec.output = axis.WithFeatures(features);
    spec.memory.input_last_use = LastUse::kBackwardInput;
    const auto elements = static_cast<double>(axis.rows * features);
    const double w = context.value_bytes();
    spec.forward = {14.0 * elements, 3.0 * w * elements};
    spec.backward_input = {20.0 * elements, 5.0 * w * elements};
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    return op_->Forward(args.stream, args.x, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    return op_->BackwardInput(args.stream, args.dy, args.x, args.dx);
  }

 private:
  const kernels::GluGate gate_;
  const char* const name_;
  std::unique_ptr<kernels::SwiGluOp> op_;
};

template <LayerFactory (*kFactory)()>
absl::Status Parse(LayerEntry&, ParsedLayer& layer) {
  layer.factories = {kFactory()};
  layer.output_of = [](const Shape& input) { return WithLastAxis(input, LastAxisOf(input) / 2); };
  return absl::OkStatus();
}

}  // namespace

LayerFactory SwiGlu() { return LayerOf<SwiGluLayer>(kernels::GluGate::kSilu); }
LayerFactory GeGlu() { return LayerOf<SwiGluLayer>(kernels::GluGate::kGelu); }

const LayerType kSwiGluType = {.name = "swiglu", .parse = Parse<SwiGlu>};
const LayerType kGeGluType = {.name = "geglu", .parse = Parse<GeGlu>};

}  // namespace stagecoach::engine
