#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_IMAGE_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_IMAGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/layer.h"

namespace stagecoach::engine {

// A sample as layers of images see it.
struct Image {
  int64_t channels, height, width;

  int64_t area() const { return height * width; }
};

// InvalidArgument, with the layer's name: the samples are not of shape [channels, height, width].
absl::StatusOr<Image> ImageOf(absl::string_view layer, const LayerContext& context);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_IMAGE_H_
