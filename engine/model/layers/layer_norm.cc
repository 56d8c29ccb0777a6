#include "engine/model/layers/layer_norm.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/model/sum_fusion.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class LayerNormLayer final : public Layer, public SumFusion {
 public:
  explicit LayerNormLayer(float epsilon) : epsilon_(epsilon) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    const int64_t features = context.input.elements();
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::LayerNormShape{context.rows, features, epsilon_}));
    statistics_ = Shape{context.rows, 2};
    LayerSpec spec;
    spec.description = absl::StrCat("layer norm ", features);
    spec.output = context.input;
    spec.parameters = {{"gamma", Shape{features}, Init::Constant(1.0F), false},
                       {"beta", Shape{features}, Init::Constant(0.0F), false}};
    spec.memory.weight_stash_bytes = kernels::Float32(nullptr, statistics_).bytes();
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    const double elements = static_cast<double>(context.rows * features);
    spec.forward = {8.0 * elements, 8.0 * elements};
    spec.backward_input = {14.0 * elements, 12.0 * elements};
    spec.backward_weight = {5.0 * elements, 8.0 * elements};
    return spec;
  }

  Abilities abilities() const override { return {.adds_to_x = true, .adds_to_dx = true}; }

  absl::Status Forward(const LayerArgs& args) override { return ForwardFused(args, {}, false); }

  absl::Status ForwardFused(const LayerArgs& args, const Tensor& x_addend, bool) override {
    return op_->Forward(args.stream, args.x, args.parameters[0], args.parameters[1], x_addend,
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
                               args.gradients[1], args.accumulate, args.workspace);
  }

 private:
  Tensor Statistics(const LayerArgs& args) const {
    return kernels::Float32(args.weight_stash, statistics_);
  }

  const float epsilon_;
  Shape statistics_;  // (rows, 2)
  std::unique_ptr<kernels::LayerNormOp> op_;
};

}  // namespace

LayerFactory LayerNorm(float epsilon) { return LayerOf<LayerNormLayer>(epsilon); }

}  // namespace stagecoach::engine
