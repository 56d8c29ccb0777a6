#include "kernels/ops/pooling.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {

absl::Status PoolingRefusal(const PoolingShape& shape, int64_t max_extent) {
  return absl::InvalidArgumentError(
      absl::StrCat("pooling: extents must be 1 to ", max_extent,
                   ", the padding at most half of the kernel, and the kernel no larger than the "
                   "padded image: ",
                   shape.samples, " samples, ", shape.channels, " channels of ", shape.height,
                   " x ", shape.width, ", kernel ", shape.kernel_height, " x ", shape.kernel_width,
                   ", stride ", shape.stride, ", padding ", shape.padding));
}

}  // namespace stagecoach::kernels
