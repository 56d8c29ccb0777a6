#include "kernels/ops/image_norm.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {

absl::Status ImageNormRefusal(const ImageNormShape& shape, int64_t max_extent) {
  return absl::InvalidArgumentError(
      absl::StrCat("image norm: extents must be 1 to ", max_extent,
                   ", groups divide the channels and epsilon be positive: ", shape.samples,
                   " samples, ", shape.channels, " channels of ", shape.area, " elements, ",
                   shape.groups, " groups, epsilon ", shape.epsilon));
}

}  // namespace stagecoach::kernels
