#include "engine/models/model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"

namespace stagecoach::engine {

absl::StatusOr<Model> DefaultNetwork(int64_t features, int64_t classes, int layers, int64_t width) {
  if (layers < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the default network has at least 2 layers, not ", layers));
  }
  if (width < 1 || features < 1 || classes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the default network needs a width, features and classes of at least 1, not ",
                     width, ", ", features, " and ", classes));
  }
  // Each block adds to its input, so it is initialized small: the sum does not grow with the depth.
  const int blocks = layers - 2;
  const auto gain = static_cast<float>(1.0 / std::sqrt(std::max(blocks, 1)));
  Model model{.input = Shape{features}};
  model.layers.push_back(Linear(width, Activation::kGelu));
  for (int i = 0; i < blocks; ++i) {
    model.layers.push_back(Residual({LayerNorm(), Linear(width, Activation::kGelu, gain)}));
  }
  model.layers.push_back(Linear(classes));
  return model;
}

}  // namespace stagecoach::engine
