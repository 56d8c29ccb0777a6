#include "engine/nn/layers/layer_norm.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/fusion/norm_fusion.h"
#include "engine/nn/fusion/sum_fusion.h"
#include "engine/nn/last_axis.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

constexpr float kUsualEpsilon = 1e-5F;

// `centers`: LayerNorm; otherwise RMSNorm.
class LayerNormLayer final : public Layer, public SumFusion, public PlainNorm {
 public:
  LayerNormLayer(bool centers, float epsilon) : centers_(centers), epsilon_(epsilon) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    const absl::string_view name = centers_ ? "layer norm" : "rms norm";
    ASSIGN_OR_RETURN(const LastAxis axis, AlongLastAxis(name, context));
    const int64_t features = axis.features;
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::LayerNormShape{axis.rows, features, epsilon_, centers_}));
    statistics_ = centers_ ? Shape{axis.rows, 2} : Shape{axis.rows};
    LayerSpec spec;
    spec.description = absl::StrCat(name, " ", features);
    if (epsilon_ != kUsualEpsilon) absl::StrAppend(&spec.description, ", epsilon ", epsilon_);
    spec.output = context.input;
    spec.parameters = {{"gamma", Shape{features}, Init::Constant(1.0F), false}};
    if (centers_) spec.parameters.push_back({"beta", Shape{features}, Init::Constant(0.0F), false});
    spec.memory.weight_stash_bytes = kernels::Float32(nullptr, statistics_).bytes();
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    const double elements = static_cast<double>(axis.rows * features);
    const double bytes = context.value_bytes() * elements;
    spec.forward = {8.0 * elements, 2.0 * bytes};
    spec.backward_input = {14.0 * elements, 3.0 * bytes};
    spec.backward_weight = {5.0 * elements, 2.0 * bytes};
    if (op_->shares_backward()) spec.backward_shared = {0.0, 2.0 * bytes};  // both read dy and x
    return spec;
  }

  Abilities abilities() const override { return {.adds_to_x = true, .adds_to_dx = true}; }

  kernels::InputNorm NormOf(absl::Span<const Tensor> parameters) const override {
    return {parameters[0], BetaOf(parameters), epsilon_, centers_};
  }

  absl::Status Forward(const LayerArgs& args) override { return ForwardFused(args, {}, false); }

  absl::Status ForwardFused(const LayerArgs& args, const Tensor& x_addend, bool) override {
    return op_->Forward(args.stream, args.x, args.parameters[0], BetaOf(args.parameters), x_addend,
                        Statistics(args), args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return BackwardInputFused(args, {});
  }

  absl::Status BackwardInputFused(const LayerArgs& args, const Tensor& dx_addend) override {
    if (args.dx.empty()) return absl::OkStatus();
    return op_->BackwardInput(args.stream, args.dy, args.x, args.parameters[0], Statistics(args),
                              dx_addend, args.dx);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return op_->BackwardWeight(args.stream, args.dy, args.x, Statistics(args), args.gradients[0],
                               BetaOf(args.gradients), args.accumulate, args.workspace);
  }

  absl::Status Backward(const LayerArgs& args) override { return BackwardFused(args, {}); }

  absl::Status BackwardFused(const LayerArgs& args, const BackwardSums& sums) override {
    if (args.dx.empty()) return BackwardWeight(args);
    return op_->Backward(args.stream, args.dy, args.x, args.parameters[0], Statistics(args),
                         sums.dx_addend, args.dx, args.gradients[0], BetaOf(args.gradients),
                         args.accumulate, args.workspace);
  }

 private:
  Tensor Statistics(const LayerArgs& args) const {
    return kernels::Float32(args.weight_stash, statistics_);
  }

  Tensor BetaOf(absl::Span<const Tensor> tensors) const { return centers_ ? tensors[1] : Tensor{}; }

  const bool centers_;
  const float epsilon_;
  Shape statistics_;
  std::unique_ptr<kernels::LayerNormOp> op_;
};

}  // namespace

LayerFactory LayerNorm(float epsilon) { return LayerOf<LayerNormLayer>(true, epsilon); }

LayerFactory RmsNorm(float epsilon) { return LayerOf<LayerNormLayer>(false, epsilon); }

const LayerType kLayerNormType = {
    .name = "layer_norm",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      ASSIGN_OR_RETURN(const float epsilon, ParseNormEpsilon(entry.reader));
      layer.factories = {LayerNorm(epsilon)};
      return absl::OkStatus();
    },
};

const LayerType kRmsNormType = {
    .name = "rms_norm",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      ASSIGN_OR_RETURN(const float epsilon, ParseNormEpsilon(entry.reader));
      layer.factories = {RmsNorm(epsilon)};
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
