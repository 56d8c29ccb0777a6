#include "engine/nn/last_axis.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

Shape LastAxis::WithFeatures(int64_t other) const {
  std::vector<int64_t> dims;
  for (int i = 0; i + 1 < sample.rank(); ++i) dims.push_back(sample.dim(i));
  dims.push_back(other);
  return Shape(dims);
}

absl::StatusOr<LastAxis> AlongLastAxis(absl::string_view layer, const LayerContext& context) {
  const Shape& sample = context.input;
  if (sample.rank() < 1) {
    return absl::InvalidArgumentError(absl::StrCat(layer, ": takes samples of at least one axis"));
  }
  LastAxis axis = {context.rows, sample.dim(sample.rank() - 1), sample};
  for (int i = 0; i + 1 < sample.rank(); ++i) axis.rows *= sample.dim(i);
  return axis;
}

}  // namespace stagecoach::engine
