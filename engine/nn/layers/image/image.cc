#include "engine/nn/layers/image/image.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/convolution.h"

namespace stagecoach::engine {

absl::StatusOr<Image> ImageOf(absl::string_view layer, const LayerContext& context) {
  const Shape& input = context.input;
  if (input.rank() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat(layer, ": takes images of shape [channels, height, width], not samples of ",
                     input.ToString(), "; a model says what its images are by its input"));
  }
  return Image{input.dim(0), input.dim(1), input.dim(2)};
}

Shape BehindWindow(const Shape& input, int64_t channels, int64_t kernel, int64_t stride,
                   int64_t padding) {
  if (input.rank() != 3) return input;
  return Shape{channels, kernels::WindowsAlong(input.dim(1), kernel, stride, padding),
               kernels::WindowsAlong(input.dim(2), kernel, stride, padding)};
}

}  // namespace stagecoach::engine
