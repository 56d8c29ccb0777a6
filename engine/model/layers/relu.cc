#include "engine/model/layers/relu.h"

#include <memory>

#include "base/status_macros.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/relu.h"

namespace stagecoach::engine {
namespace {

class ReluLayer final : public Layer {
 public:
  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    const int64_t features = context.input.elements();
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(kernels::ReluShape{context.rows, features}));
    LayerSpec spec;
    spec.description = "relu";
    spec.output = context.input;
    spec.memory.input_last_use = LastUse::kForward;
    spec.memory.output_last_use = LastUse::kBackwardInput;
    const auto elements = static_cast<double>(context.rows * features);
    spec.forward = {elements, 8.0 * elements};
    spec.backward_input = {elements, 12.0 * elements};
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    return op_->Forward(args.stream, args.x, {}, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    return op_->BackwardInput(args.stream, args.dy, args.y, args.dx);
  }

 private:
  std::unique_ptr<kernels::ReluOp> op_;
};

}  // namespace

LayerFactory Relu() { return LayerOf<ReluLayer>(); }

}  // namespace stagecoach::engine
