#include "engine/model/layers/flatten.h"

#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class FlattenLayer final : public Layer {
 public:
  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (context.cached_positions > 0) {
      return absl::InvalidArgumentError(
          "flatten: mixes the positions of a sequence, and so cannot be given them one by one");
    }
    copy_ = &context.device.ops().elementwise();
    LayerSpec spec;
    spec.description = "flatten";
    spec.output = Shape{context.input.elements()};
    spec.memory.input_last_use = LastUse::kForward;
    const auto elements = static_cast<double>(context.rows * context.input.elements());
    spec.forward = spec.backward_input = {0.0, 8.0 * elements};
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    return copy_->Copy(args.stream, args.x, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return args.dx.empty() ? absl::OkStatus() : copy_->Copy(args.stream, args.dy, args.dx);
  }

 private:
  kernels::ElementwiseOps* copy_ = nullptr;
};

}  // namespace

LayerFactory Flatten() { return LayerOf<FlattenLayer>(); }

}  // namespace stagecoach::engine
