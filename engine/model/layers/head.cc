#include "engine/model/layers/head.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/model/layers/last_axis.h"
#include "kernels/ops/head.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class HeadLayer final : public Layer {
 public:
  explicit HeadLayer(const HeadOptions& options)
      : classes_(options.classes), deviation_(options.deviation) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (!context.feeds_cross_entropy) {
      return absl::InvalidArgumentError(
          "head: computes the loss itself, so it must be the last layer of a model whose loss is "
          "softmax cross-entropy; elsewhere use a linear layer without bias");
    }
    ASSIGN_OR_RETURN(const LastAxis axis, AlongLastAxis("head", context));
    const int64_t features = axis.features;
    positions_ = axis.rows / context.rows;
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::HeadShape{axis.rows, features, classes_, positions_}));
    const Tensor targets{nullptr, kernels::DType::kInt32, Shape{axis.rows}};
    targets_bytes_ = partition::AlignTensor(targets.bytes());
    LayerSpec spec;
    spec.description = absl::StrCat("head ", features, " -> ", classes_);
    spec.output = axis.WithFeatures(classes_);
    spec.computes_loss = true;
    spec.parameters = {{"weight", Shape{classes_, features}, Init::Normal(0.0F, deviation_), true}};
    spec.memory.workspace_bytes = targets_bytes_ + op_->workspace_bytes();
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

  absl::Status Forward(const LayerArgs& args) override {
    if (args.loss == nullptr) return absl::OkStatus();  // B has it
    const LossTerms& loss = *args.loss;
    if (loss.result.empty() && loss.outputs.empty()) return absl::OkStatus();
    return op_->Forward(args.stream, args.x, args.parameters[0], loss.targets, ValidRows(loss),
                        loss.outputs, loss.result, args.workspace + targets_bytes_);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    const LossTerms& loss = *args.loss;
    return op_->BackwardInput(args.stream, args.x, args.parameters[0], loss.targets,
                              ValidRows(loss), loss.scale, loss.result, args.dx,
                              args.gradient_stash, args.workspace + targets_bytes_);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return op_->BackwardWeight(args.stream, args.x, args.parameters[0], args.gradient_stash,
                               args.gradients[0], args.accumulate, args.workspace + targets_bytes_);
  }

  absl::Status Backward(const LayerArgs& args) override {
    const LossTerms& loss = *args.loss;
    return op_->Backward(args.stream, args.x, args.parameters[0], loss.targets, ValidRows(loss),
                         loss.scale, loss.result, args.dx, args.gradients[0], args.accumulate,
                         args.workspace + targets_bytes_);
  }

 private:
  int64_t ValidRows(const LossTerms& loss) const { return loss.valid_rows * positions_; }

  const int64_t classes_;
  const float deviation_;
  int64_t positions_ = 1;  // of a sample
  int64_t targets_bytes_ = 0;
  std::unique_ptr<kernels::HeadOp> op_;
};

}  // namespace

LayerFactory Head(const HeadOptions& options) { return LayerOf<HeadLayer>(options); }

}  // namespace stagecoach::engine
