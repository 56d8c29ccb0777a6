#include "engine/nn/layers/image/image_norm.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/fusion/tail_fusion.h"
#include "engine/nn/layers/image/image.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/image_norm.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

constexpr float kUsualNormEpsilon = 1e-5F;

class ImageNormLayer : public Layer, public TailFusion {
 public:
  ImageNormLayer(int64_t groups, float epsilon) : groups_(groups), epsilon_(epsilon) {}

  TakesImages takes_images() const override { return TakesImages::kAsTheDeviceDoes; }

  absl::Status Forward(const LayerArgs& args) override { return ForwardWithTail(args, {}); }

  absl::Status ForwardWithTail(const LayerArgs& args, const Tail& tail) override {
    return op_->Forward(args.stream, TensorsOf(args),
                        {tail.addend, tail.has_relu, tail.addend_norm}, args.workspace);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    return op_->BackwardInput(args.stream, args.dy, TensorsOf(args), {}, args.dx, args.workspace);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return op_->BackwardWeight(args.stream, args.dy, TensorsOf(args), {}, args.gradients[0],
                               args.gradients[1], args.accumulate, args.workspace);
  }

  absl::Status Backward(const LayerArgs& args) override { return WholeBackward(args, {}); }

  absl::Status BackwardWithTail(const LayerArgs& args, const TailGradient& tail) override {
    return WholeBackward(
        args, {.has_relu = true, .dy_addend = tail.dy_addend, .y = tail.y, .dz = tail.dz});
  }
  bool adds_to_dy() const override { return op_->adds_to_dy(); }

 protected:
  virtual absl::Status WholeBackward(const LayerArgs& args,
                                     const kernels::ImageNormTailGradient& tail) {
    const kernels::ImageNormTensors tensors = TensorsOf(args);
    if (args.dx.empty()) {
      return op_->BackwardWeight(args.stream, args.dy, tensors, tail, args.gradients[0],
                                 args.gradients[1], args.accumulate, args.workspace);
    }
    return op_->Backward(args.stream, args.dy, tensors, tail, args.dx, args.gradients[0],
                         args.gradients[1], args.accumulate, args.workspace);
  }

  absl::StatusOr<LayerSpec> PrepareNorm(const char* name, const LayerContext& context) {
    ASSIGN_OR_RETURN(const Image image, ImageOf(name, context));
    const kernels::ImageNormShape shape = {context.rows, image.channels, image.area(), groups_,
                                           epsilon_};
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(shape));
    if (shape.set_size() == 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": one element alone cannot be normalized: ", context.rows, " rows of ",
          context.input.ToString(), "; take larger micro-batches, or leave the layer out"));
    }
    statistics_ = Shape{shape.sets()};
    LayerSpec spec;
    spec.description = absl::StrCat(name, " ", image.channels);
    if (groups_ > 0) absl::StrAppend(&spec.description, ", groups ", groups_);
    if (epsilon_ != kUsualNormEpsilon) {
      absl::StrAppend(&spec.description, ", epsilon ", epsilon_);
    }
    spec.output = context.input;
    spec.parameters = {{"weight", Shape{image.channels}, Init::Constant(1.0F), false},
                       {"bias", Shape{image.channels}, Init::Constant(0.0F), false}};
    spec.memory.weight_stash_bytes = 2 * StatisticBytes();
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    const auto elements = static_cast<double>(context.rows * context.input.elements());
    const double bytes = context.value_bytes() * elements;
    spec.forward = {8.0 * elements, 2.0 * bytes};
    spec.backward_input = {14.0 * elements, 3.0 * bytes};
    spec.backward_weight = {5.0 * elements, 2.0 * bytes};
    if (op_->shares_backward()) spec.backward_shared = {0.0, 2.0 * bytes};  // both read dy and x
    return spec;
  }

  Tensor Mean(const LayerArgs& args) const {
    return kernels::Float32(args.weight_stash, statistics_);
  }
  Tensor Variance(const LayerArgs& args) const {
    return kernels::Float32(args.weight_stash + StatisticBytes(), statistics_);
  }
  kernels::ImageNormTensors TensorsOf(const LayerArgs& args, const Tensor& mean,
                                      const Tensor& variance) const {
    return {.x = args.x,
            .gamma = args.parameters[0],
            .beta = args.parameters[1],
            .mean = mean,
            .variance = variance,
            .y = args.y};
  }
  // Returns the tensors with the statistics of the micro-batch.
  kernels::ImageNormTensors TensorsOf(const LayerArgs& args) const {
    return TensorsOf(args, Mean(args), Variance(args));
  }
  kernels::ImageNormOp& op() const { return *op_; }
  float epsilon() const { return epsilon_; }

 private:
  int64_t StatisticBytes() const {
    return partition::AlignTensor(kernels::Float32(nullptr, statistics_).bytes());
  }

  const int64_t groups_;  // 0: batch norm
  const float epsilon_;
  Shape statistics_;
  std::unique_ptr<kernels::ImageNormOp> op_;
};

class GroupNormLayer final : public ImageNormLayer {
 public:
  using ImageNormLayer::ImageNormLayer;

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    return PrepareNorm("group norm", context);
  }
};

class BatchNormLayer final : public ImageNormLayer {
 public:
  explicit BatchNormLayer(const BatchNormOptions& options)
      : ImageNormLayer(0, options.epsilon), momentum_(options.momentum) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (!(momentum_ > 0.0F && momentum_ <= 1.0F)) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch norm: the momentum must be above 0 and at most 1, not ", momentum_));
    }
    ASSIGN_OR_RETURN(LayerSpec spec, PrepareNorm("batch norm", context));
    const Shape channels = spec.parameters[0].shape;
    const UpdateRule average = UpdateRule::MovingAverage(momentum_);
    spec.parameters.push_back({"running_mean", channels, Init::Constant(0.0F), false, average});
    spec.parameters.push_back({"running_var", channels, Init::Constant(1.0F), false, average});
    return spec;
  }

  // Padding rows occur in evaluation alone, where no statistics are computed.
  absl::Status ForwardWithTail(const LayerArgs& args, const Tail& tail) override {
    if (args.call.is_training) return ImageNormLayer::ForwardWithTail(args, tail);
    return op().Apply(args.stream, TensorsOf(args, args.parameters[2], args.parameters[3]),
                      {tail.addend, tail.has_relu, tail.addend_norm});
  }

  bool defers_y() const override { return op().norms_addend(); }
  bool takes_deferred_y() const override { return op().norms_addend(); }

  absl::Status ForwardDeferred(const LayerArgs& args) override {
    if (!args.call.is_training) return absl::OkStatus();
    return op().Statistics(args.stream, TensorsOf(args), args.workspace);
  }

  kernels::OtherImageNorm DeferredNorm(const LayerArgs& args) const override {
    const bool is_training = args.call.is_training;
    return {.gamma = args.parameters[0],
            .beta = args.parameters[1],
            .mean = is_training ? Mean(args) : args.parameters[2],
            .variance = is_training ? Variance(args) : args.parameters[3],
            .epsilon = epsilon()};
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    RETURN_IF_ERROR(ImageNormLayer::BackwardWeight(args));
    return op().Collect(args.stream, Mean(args), Variance(args), args.gradients[2],
                        args.gradients[3], args.accumulate);
  }

 private:
  absl::Status WholeBackward(const LayerArgs& args,
                             const kernels::ImageNormTailGradient& tail) override {
    return op().BackwardAndCollect(
        args.stream, args.dy, TensorsOf(args), tail, args.dx, args.gradients[0], args.gradients[1],
        {args.gradients[2], args.gradients[3]}, args.accumulate, args.workspace);
  }

  const float momentum_;
};

}  // namespace

LayerFactory GroupNorm(int64_t groups, float epsilon) {
  return LayerOf<GroupNormLayer>(groups, epsilon);
}

LayerFactory BatchNorm(const BatchNormOptions& options) { return LayerOf<BatchNormLayer>(options); }

const LayerType kGroupNormType = {
    .name = "group_norm",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      ASSIGN_OR_RETURN(const int64_t groups, entry.reader.RequiredInt64("groups", kFileCounts));
      ASSIGN_OR_RETURN(const float epsilon, ParseNormEpsilon(entry.reader));
      layer.factories = {GroupNorm(groups, epsilon)};
      return absl::OkStatus();
    },
};

const LayerType kBatchNormType = {
    .name = "batch_norm",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      BatchNormOptions options;
      ASSIGN_OR_RETURN(const double momentum,
                       entry.reader.OptionalDouble("momentum", 0.1, {.min = 1e-6, .max = 1.0}));
      options.momentum = static_cast<float>(momentum);
      ASSIGN_OR_RETURN(options.epsilon, ParseNormEpsilon(entry.reader));
      layer.factories = {BatchNorm(options)};
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
