#include "engine/nn/layers/image/pooling.h"

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/layers/image/image.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/pooling.h"

namespace stagecoach::engine {
namespace {

using kernels::Pooling;

class PoolingLayer final : public Layer {
 public:
  // Without options, the window is the whole image.
  PoolingLayer(Pooling kind, const std::optional<PoolOptions>& options)
      : kind_(kind), options_(options) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    const char* const name = !options_.has_value()    ? "global average pool"
                             : kind_ == Pooling::kMax ? "max pool"
                                                      : "average pool";
    ASSIGN_OR_RETURN(const Image image, ImageOf(name, context));
    kernels::PoolingShape shape = {.kind = kind_,
                                   .samples = context.rows,
                                   .channels = image.channels,
                                   .height = image.height,
                                   .width = image.width,
                                   .kernel_height = image.height,
                                   .kernel_width = image.width};
    LayerSpec spec;
    spec.description = name;
    if (options_.has_value()) {
      shape.kernel_height = shape.kernel_width = options_->kernel;
      shape.stride = options_->stride == 0 ? options_->kernel : options_->stride;
      shape.padding = options_->padding;
      absl::StrAppend(&spec.description, " ", options_->kernel, ", stride ", shape.stride);
      if (shape.padding != 0) absl::StrAppend(&spec.description, ", padding ", shape.padding);
    }
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(shape));
    spec.output = options_.has_value()
                      ? Shape{image.channels, shape.output_height(), shape.output_width()}.InOrder(
                            context.device.image_order())
                      : Shape{image.channels};
    spec.memory.input_last_use =
        kind_ == Pooling::kMax ? LastUse::kBackwardInput : LastUse::kForward;
    spec.memory.workspace_bytes = op_->workspace_bytes();
    const auto outputs = static_cast<double>(context.rows * spec.output.elements());
    const double reads = outputs * static_cast<double>(shape.kernel_height * shape.kernel_width);
    const double bytes = context.value_bytes() *
                         (outputs + static_cast<double>(context.rows * context.input.elements()));
    spec.forward = {reads, bytes};
    spec.backward_input = {kind_ == Pooling::kMax ? 2.0 * reads : reads, 2.0 * bytes};
    return spec;
  }

  TakesImages takes_images() const override { return TakesImages::kAsTheDeviceDoes; }

  absl::Status Forward(const LayerArgs& args) override {
    return op_->Forward(args.stream, args.x, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    return op_->BackwardInput(args.stream, args.dy, args.x, args.dx, args.workspace);
  }

 private:
  const Pooling kind_;
  const std::optional<PoolOptions> options_;
  std::unique_ptr<kernels::PoolingOp> op_;
};

}  // namespace

LayerFactory MaxPool(const PoolOptions& options) {
  return LayerOf<PoolingLayer>(Pooling::kMax, options);
}
LayerFactory AvgPool(const PoolOptions& options) {
  return LayerOf<PoolingLayer>(Pooling::kAverage, options);
}
LayerFactory GlobalAvgPool() { return LayerOf<PoolingLayer>(Pooling::kAverage, std::nullopt); }

namespace {

absl::Status ParsePool(LayerFactory (*pool)(const PoolOptions&), base::ObjectReader& reader,
                       ParsedLayer& layer) {
  PoolOptions options;
  ASSIGN_OR_RETURN(options.kernel, reader.OptionalInt64("kernel", options.kernel, kFileCounts));
  ASSIGN_OR_RETURN(options.stride, reader.OptionalInt64("stride", options.kernel, kFileCounts));
  ASSIGN_OR_RETURN(options.padding, reader.OptionalInt64("padding", options.padding,
                                                         {.min = 0, .max = kMaxFileOutputs}));
  layer.factories = {pool(options)};
  layer.output_of = [options](const Shape& input) {
    const int64_t channels = input.rank() == 3 ? input.dim(0) : 0;
    return BehindWindow(input, channels, options.kernel, options.stride, options.padding);
  };
  return absl::OkStatus();
}

}  // namespace

const LayerType kMaxPoolType = {
    .name = "max_pool",
    .parse = [](LayerEntry& entry,
                ParsedLayer& layer) { return ParsePool(MaxPool, entry.reader, layer); },
};

const LayerType kAvgPoolType = {
    .name = "avg_pool",
    .parse = [](LayerEntry& entry,
                ParsedLayer& layer) { return ParsePool(AvgPool, entry.reader, layer); },
};

const LayerType kGlobalAvgPoolType = {
    .name = "global_avg_pool",
    .parse = [](LayerEntry&, ParsedLayer& layer) -> absl::Status {
      layer.factories = {GlobalAvgPool()};
      layer.output_of = [](const Shape& input) {
        return input.rank() == 3 ? Shape{input.dim(0)} : input;
      };
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
