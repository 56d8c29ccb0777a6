#include "engine/nn/layers/image/conv2d.h"

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/nn/fusion/sum_fusion.h"
#include "engine/nn/layers/image/image.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class Conv2dLayer final : public Layer, public SumFusion {
 public:
  explicit Conv2dLayer(const Conv2dOptions& options) : options_(options) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ASSIGN_OR_RETURN(const Image image, ImageOf("conv2d", context));
    const kernels::ConvolutionShape shape = {.samples = context.rows,
                                             .inputs = image.channels,
                                             .height = image.height,
                                             .width = image.width,
                                             .outputs = options_.outputs,
                                             .kernel = options_.kernel,
                                             .stride = options_.stride,
                                             .padding = options_.padding,
                                             .groups = options_.groups,
                                             .has_bias = options_.has_bias};
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(shape));
    const int64_t window = options_.kernel * options_.kernel;
    LayerSpec spec;
    spec.description = absl::StrCat("conv2d ", image.channels, " -> ", options_.outputs,
                                    ", kernel ", options_.kernel);
    if (options_.stride != 1) absl::StrAppend(&spec.description, ", stride ", options_.stride);
    if (options_.padding != 0) absl::StrAppend(&spec.description, ", padding ", options_.padding);
    if (options_.groups != 1) absl::StrAppend(&spec.description, ", groups ", options_.groups);
    if (!options_.has_bias) absl::StrAppend(&spec.description, ", no bias");
    spec.output = Shape{options_.outputs, shape.output_height(), shape.output_width()}.InOrder(
        context.device.image_order());
    const double variance = 2.0 / static_cast<double>(options_.outputs * window);
    const Shape weight{options_.outputs, image.channels / options_.groups, options_.kernel,
                       options_.kernel};
    spec.parameters = {
        {"weight", weight, Init::Normal(0.0F, static_cast<float>(std::sqrt(variance)))}};
    if (options_.has_bias) {
      spec.parameters.push_back({"bias", Shape{options_.outputs}, Init::Constant(0.0F), false});
    }
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    const auto rows = static_cast<double>(context.rows);
    const auto weights = static_cast<double>(weight.elements());
    const auto area = static_cast<double>(shape.output_height() * shape.output_width());
    const double activations =
        rows * static_cast<double>(context.input.elements() + spec.output.elements());
    const double w = context.value_bytes();
    spec.forward = spec.backward_input = {2.0 * rows * weights * area, w * (weights + activations)};
    // The gradient has 4 bytes per weight, whatever the type of activations.
    spec.backward_weight = {2.0 * rows * weights * area, 4.0 * weights + w * activations};
    return spec;
  }

  TakesImages takes_images() const override { return TakesImages::kAsTheDeviceDoes; }

  absl::Status Forward(const LayerArgs& args) override {
    return op_->Forward(args.stream, args.x, args.parameters[0], BiasOf(args.parameters), args.y,
                        args.workspace);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return BackwardInputFused(args, {});
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return op_->BackwardWeight(args.stream, args.x, args.dy, args.gradients[0],
                               BiasOf(args.gradients), args.accumulate, args.workspace);
  }

  Abilities abilities() const override { return {.adds_to_dx = op_->adds_to_dx()}; }

  absl::Status ForwardFused(const LayerArgs& args, const Tensor& x_addend, bool) override {
    STAGECOACH_CHECK(x_addend.empty(), "a convolution does not add to x");
    return Forward(args);
  }

  absl::Status BackwardInputFused(const LayerArgs& args, const Tensor& dx_addend) override {
    if (args.dx.empty()) return absl::OkStatus();
    return op_->BackwardInput(args.stream, args.dy, args.parameters[0], dx_addend, args.dx,
                              args.workspace);
  }

  absl::Status BackwardFused(const LayerArgs& args, const BackwardSums& sums) override {
    RETURN_IF_ERROR(BackwardInputFused(args, sums.dx_addend));
    return BackwardWeight(args);
  }

 private:
  Tensor BiasOf(absl::Span<const Tensor> tensors) const {
    return options_.has_bias ? tensors[1] : Tensor{};
  }

  const Conv2dOptions options_;
  std::unique_ptr<kernels::ConvolutionOp> op_;
};

}  // namespace

LayerFactory Conv2d(const Conv2dOptions& options) { return LayerOf<Conv2dLayer>(options); }

const LayerType kConv2dType = {
    .name = "conv2d",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      Conv2dOptions options;
      base::ObjectReader& reader = entry.reader;
      ASSIGN_OR_RETURN(options.outputs, reader.RequiredInt64("outputs", kFileCounts));
      ASSIGN_OR_RETURN(options.kernel, reader.RequiredInt64("kernel", kFileCounts));
      ASSIGN_OR_RETURN(options.stride, reader.OptionalInt64("stride", options.stride, kFileCounts));
      ASSIGN_OR_RETURN(options.padding, reader.OptionalInt64("padding", options.padding,
                                                             {.min = 0, .max = kMaxFileOutputs}));
      ASSIGN_OR_RETURN(options.groups, reader.OptionalInt64("groups", options.groups, kFileCounts));
      ASSIGN_OR_RETURN(options.has_bias, reader.OptionalBool("bias", options.has_bias));
      layer.factories = {Conv2d(options)};
      layer.output_of = [options](const Shape& input) {
        return BehindWindow(input, options.outputs, options.kernel, options.stride,
                            options.padding);
      };
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
