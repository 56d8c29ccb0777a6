#include "engine/nn/layers/image/flatten.h"

#include <memory>

#include "base/status_macros.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/transpose.h"

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
    if (context.input.image_order() == kernels::ImageOrder::kChannelsLast) {
      const int64_t channels = context.input.dim(0), area = context.input.elements() / channels;
      kernels::Ops& ops = context.device.ops();
      ASSIGN_OR_RETURN(to_first_,
                       ops.Create(kernels::TransposeShape{context.rows, area, channels}));
      ASSIGN_OR_RETURN(to_last_, ops.Create(kernels::TransposeShape{context.rows, channels, area}));
    }
    LayerSpec spec;
    spec.description = "flatten";
    spec.output = Shape{context.input.elements()};
    spec.memory.input_last_use = LastUse::kForward;
    const auto elements = static_cast<double>(context.rows * context.input.elements());
    spec.forward = spec.backward_input = {0.0, 2.0 * context.value_bytes() * elements};
    return spec;
  }

  TakesImages takes_images() const override { return TakesImages::kInAnyOrder; }

  absl::Status Forward(const LayerArgs& args) override {
    if (to_first_ != nullptr) return to_first_->Apply(args.stream, args.x, args.y);
    return copy_->Copy(args.stream, args.x, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    if (to_last_ != nullptr) return to_last_->Apply(args.stream, args.dy, args.dx);
    return copy_->Copy(args.stream, args.dy, args.dx);
  }

 private:
  kernels::ElementwiseOps* copy_ = nullptr;
  // For images whose channels are last: features have them first.
  std::unique_ptr<kernels::TransposeOp> to_first_, to_last_;
};

}  // namespace

LayerFactory Flatten() { return LayerOf<FlattenLayer>(); }

const LayerType kFlattenType = {
    .name = "flatten",
    .parse = [](LayerEntry&, ParsedLayer& layer) -> absl::Status {
      layer.factories = {Flatten()};
      layer.output_of = [](const Shape& input) {
        // Above this, no layer takes it.
        constexpr double kMost = 1e15;
        double elements = 1.0;
        for (int i = 0; i < input.rank(); ++i) elements *= static_cast<double>(input.dim(i));
        return elements < kMost ? Shape{input.elements()} : input;
      };
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
