#ifndef STAGECOACH_ENGINE_NN_LAYERS_IMAGE_H_
#define STAGECOACH_ENGINE_NN_LAYERS_IMAGE_H_

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

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_IMAGE_H_
