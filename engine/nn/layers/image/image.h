#ifndef STAGECOACH_ENGINE_NN_LAYERS_IMAGE_IMAGE_H_
#define STAGECOACH_ENGINE_NN_LAYERS_IMAGE_IMAGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/nn/layer.h"

namespace stagecoach::engine {

// A sample as seen by layers of images.
struct Image {
  int64_t channels, height, width;

  int64_t area() const { return height * width; }
};

// Returns the image of a sample. InvalidArgument, with the layer's name: the samples are not of
// shape [channels, height, width].
absl::StatusOr<Image> ImageOf(absl::string_view layer, const LayerContext& context);

// Returns the shape of an image after a window of that size; that of the input if it is none.
Shape BehindWindow(const Shape& input, int64_t channels, int64_t kernel, int64_t stride,
                   int64_t padding);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_IMAGE_IMAGE_H_
