#include "engine/nn/layers/image.h"

#include "absl/strings/str_cat.h"

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

}  // namespace stagecoach::engine
