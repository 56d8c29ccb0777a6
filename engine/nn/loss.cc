#include "engine/nn/loss.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

// A loss that is one operation over class labels.
template <typename Shape>
class ClassLoss final : public Loss {
 public:
  ClassLoss(const char* name, double (*loss_of_guessing)(double classes),
            CrossEntropyOptions options = {})
      : name_(name), loss_of_guessing_(loss_of_guessing), options_(std::move(options)) {}

  absl::StatusOr<LossSpec> Prepare(const LossContext& context) override {
    const kernels::Shape& output = context.output;
    if (output.rank() != 1 && output.rank() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": takes one number a class, so outputs of shape [classes] or ",
                       "[positions, classes], not ", output.ToString()));
    }
    const int64_t positions = output.rank() == 1 ? 1 : output.dim(0);
    const int64_t classes = output.dim(output.rank() - 1);
    ASSIGN_OR_RETURN(
        op_, context.device.ops().Create(Shape{{context.rows * positions, classes, positions}}));
    int64_t workspace_bytes = op_->workspace_bytes();
    if constexpr (kIsCrossEntropy) {
      if (!is_plain()) {
        Shape shape{{context.rows * positions, classes, positions}};
        shape.label_smoothing = options_.label_smoothing;
        shape.class_weights = options_.class_weights;
        ASSIGN_OR_RETURN(training_op_, context.device.ops().Create(shape));
        workspace_bytes = std::max(workspace_bytes, training_op_->workspace_bytes());
      }
    }
    TargetSpec target = TargetSpec::ClassLabel(classes);
    if (output.rank() == 2) target.shape = kernels::Shape{positions};
    return LossSpec{
        .description = absl::StrCat(
            name_, " of ", classes, " classes",
            output.rank() == 1 ? "" : absl::StrCat(" at each of ", positions, " positions"),
            DescribeOptions()),
        .target = target,
        .workspace_bytes = workspace_bytes,
        .loss_of_guessing = loss_of_guessing_(static_cast<double>(classes)),
        .is_log_likelihood = kIsCrossEntropy,
        .class_weights = options_.class_weights};
  }

  bool is_softmax_cross_entropy() const override { return kIsCrossEntropy && is_plain(); }

  absl::Status Compute(const LossArgs& args) override {
    const bool is_trained = training_op_ != nullptr && args.call.is_training;
    const std::unique_ptr<kernels::LossOp>& op = is_trained ? training_op_ : op_;
    return op->Compute(args.stream, args.y, args.targets, args.terms, args.dy, args.result,
                       args.workspace);
  }

 private:
  static constexpr bool kIsCrossEntropy = std::is_same_v<Shape, kernels::SoftmaxCrossEntropyShape>;

  bool is_plain() const {
    return options_.label_smoothing == 0.0F && options_.class_weights.empty();
  }

  std::string DescribeOptions() const {
    return absl::StrCat(options_.label_smoothing > 0.0F
                            ? absl::StrCat(", labels smoothed by ", options_.label_smoothing)
                            : "",
                        options_.class_weights.empty() ? "" : ", classes weighted");
  }

  const char* const name_;
  double (*const loss_of_guessing_)(double classes);
  const CrossEntropyOptions options_;
  std::unique_ptr<kernels::LossOp> op_, training_op_;  // the latter is null if they are the same
};

class ValueLoss final : public Loss {
 public:
  absl::StatusOr<LossSpec> Prepare(const LossContext& context) override {
    if (context.output.rank() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("mean squared error of values: takes outputs of shape [values], not ",
                       context.output.ToString()));
    }
    const int64_t values = context.output.dim(0);
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::MeanSquaredErrorOfValuesShape{{context.rows, values}}));
    TargetSpec target = {.kind = TargetSpec::Kind::kValues};
    if (values > 1) target.shape = kernels::Shape{values};
    return LossSpec{.description = absl::StrCat("mean squared error of ", values,
                                                values == 1 ? " value" : " values"),
                    .target = target,
                    .workspace_bytes = op_->workspace_bytes(),
                    .loss_of_guessing = 1.0};  // the variance of standardized values
  }

  absl::Status Compute(const LossArgs& args) override {
    return op_->Compute(args.stream, args.y, args.targets, args.terms, args.dy, args.result,
                        args.workspace);
  }

 private:
  std::unique_ptr<kernels::LossOp> op_;
};

// Returns the loss of a model that assigns every class the same probability.
double CrossEntropyOfGuessing(double classes) { return std::log(classes); }
double SquaredErrorOfGuessing(double classes) { return (1.0 - 1.0 / classes) / classes; }

}  // namespace

LossFactory SoftmaxCrossEntropy(const CrossEntropyOptions& options) {
  return LossOf<ClassLoss<kernels::SoftmaxCrossEntropyShape>>("softmax cross-entropy",
                                                              &CrossEntropyOfGuessing, options);
}

LossFactory MeanSquaredError() {
  return LossOf<ClassLoss<kernels::MeanSquaredErrorShape>>("mean squared error",
                                                           &SquaredErrorOfGuessing);
}

LossFactory MeanSquaredErrorOfValues() { return LossOf<ValueLoss>(); }

}  // namespace stagecoach::engine
