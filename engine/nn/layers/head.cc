#include "engine/nn/layers/head.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/fusion/norm_fusion.h"
#include "engine/nn/last_axis.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/head.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class HeadLayer final : public Layer, public NormFusion {
 public:
  explicit HeadLayer(const HeadOptions& options)
      : classes_(options.classes), deviation_(options.deviation), cap_(options.logit_cap) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (!context.feeds_cross_entropy) {
      return absl::InvalidArgumentError(
          "head: computes the loss itself, so it must be the last layer of a model whose loss is "
          "softmax cross-entropy; elsewhere use a linear layer without bias");
    }
    ASSIGN_OR_RETURN(const LastAxis axis, AlongLastAxis("head", context));
    const int64_t features = axis.features;
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::HeadShape{.rows = axis.rows,
                                                 .features = features,
                                                 .classes = classes_,
                                                 .positions = axis.rows / context.rows,
                                                 .independent_rows = context.rows_are_sequences,
                                                 .logit_cap = cap_}));
    generates_ = context.cached_positions > 0;
    LayerSpec spec;
    spec.description = absl::StrCat("head ", features, " -> ", classes_);
    if (cap_ != 0.0F) absl::StrAppend(&spec.description, ", cap ", cap_);
    spec.output = axis.WithFeatures(classes_);
    spec.computes_loss = true;
    spec.parameters = {{"weight", Shape{classes_, features}, Init::Normal(0.0F, deviation_), true}};
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.memory.gradient_stash_bytes = op_->statistics_bytes();
    const auto elements = static_cast<double>(classes_ * features);
    const double bytes = static_cast<double>(SizeOf(context.device.activation_type())) *
                         (elements + static_cast<double>(axis.rows * features));
    const partition::Work product = {2.0 * static_cast<double>(axis.rows) * elements, bytes};
    // Both begin with the logits.
    spec.backward_shared = product;
    spec.backward_input = {2.0 * product.flops, 2.0 * product.bytes};
    spec.backward_weight = {2.0 * product.flops, 3.0 * product.bytes};
    return spec;
  }

  // There is nothing to do for positions whose logits nobody wants.
  bool takes_norm() const override { return generates_ && op_->chooses_of_norm(); }
  bool takes_norm_in(const LayerArgs& args) const override {
    return args.loss == nullptr || args.loss->choice != nullptr;
  }

  absl::Status ForwardWithNorm(const LayerArgs& args, const kernels::InputNorm& norm,
                               const Tail& /*tail*/) override {
    if (args.loss == nullptr) return absl::OkStatus();
    return op_->ChooseOfNorm(args.stream, norm, args.x, args.parameters[0], *args.loss->choice,
                             args.workspace);
  }

  absl::Status Forward(const LayerArgs& args) override {
    if (args.loss == nullptr) return absl::OkStatus();  // B computes it
    const LayerLoss& loss = *args.loss;
    if (loss.choice != nullptr) {
      return op_->Choose(args.stream, args.x, args.parameters[0], *loss.choice, args.workspace);
    }
    return op_->Forward(args.stream, args.x, args.parameters[0], loss.targets, loss.terms,
                        loss.outputs, loss.result, args.workspace);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    const LayerLoss& loss = *args.loss;
    return op_->BackwardInput(args.stream, args.x, args.parameters[0], loss.targets, loss.terms,
                              loss.result, args.dx, args.gradient_stash, args.workspace);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return op_->BackwardWeight(args.stream, args.x, args.parameters[0], args.gradient_stash,
                               args.gradients[0], args.accumulate, args.workspace);
  }

  absl::Status Backward(const LayerArgs& args) override {
    const LayerLoss& loss = *args.loss;
    return op_->Backward(args.stream, args.x, args.parameters[0], loss.targets, loss.terms,
                         loss.result, args.dx, args.gradients[0], args.accumulate, args.workspace);
  }

 private:
  const int64_t classes_;
  const float deviation_, cap_;
  bool generates_ = false;
  std::unique_ptr<kernels::HeadOp> op_;
};

}  // namespace

LayerFactory Head(const HeadOptions& options) { return LayerOf<HeadLayer>(options); }

const LayerType kHeadType = {
    .name = "head",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      HeadOptions options = {.classes = entry.classes};
      RETURN_IF_ERROR(ParseDeviation("deviation", entry.reader, options.deviation));
      if (entry.reader.Has("logit_cap")) {
        ASSIGN_OR_RETURN(const double cap,
                         entry.reader.RequiredDouble("logit_cap", {.min = 1e-6, .max = 1e6}));
        options.logit_cap = static_cast<float>(cap);
      }
      ASSIGN_OR_RETURN(layer.is_tied, entry.reader.OptionalBool("tied", false));
      layer.factories = {Head(options)};
      layer.output_of = [outputs = options.classes](const Shape& input) {
        return WithLastAxis(input, outputs);
      };
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
