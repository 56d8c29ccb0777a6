#ifndef STAGECOACH_ENGINE_DATA_IMAGES_RESIZE_H_
#define STAGECOACH_ENGINE_DATA_IMAGES_RESIZE_H_

#include "engine/data/images/image.h"

namespace stagecoach::engine {

// Returns a part of the image, resized by bilinear interpolation that averages over as many pixels
// as become one (antialiasing): the bits of Pillow's resize(BILINEAR). Pre-condition: the box is
// not empty and is inside of the image, and the size is positive.
Image Resize(const Image& image, const ImageBox& box, int64_t height, int64_t width);

// Returns the image in that size: resized so that it covers it with one side equal, the middle of
// which is cropped. For a square, this is torchvision's Resize(size) and CenterCrop(size).
Image FitInto(const Image& image, int64_t height, int64_t width);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_IMAGES_RESIZE_H_
