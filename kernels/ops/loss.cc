#include "kernels/ops/loss.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {

absl::Status CheckClassWeights(const SoftmaxCrossEntropyShape& shape) {
  if (!(shape.label_smoothing >= 0.0F && shape.label_smoothing < 1.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss: a label smoothing of ", shape.label_smoothing, " is not in [0, 1)"));
  }
  const std::vector<float>& weights = shape.class_weights;
  if (!weights.empty() && std::ssize(weights) != shape.classes) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss: ", weights.size(), " weights for ", shape.classes, " classes"));
  }
  for (const float weight : weights) {
    if (weight >= 0.0F && std::isfinite(weight)) continue;
    return absl::InvalidArgumentError(absl::StrCat("loss: the weight of a class is ", weight,
                                                   ", not a finite number of 0 or more"));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
