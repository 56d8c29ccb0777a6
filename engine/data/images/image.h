#ifndef STAGECOACH_ENGINE_DATA_IMAGES_IMAGE_H_
#define STAGECOACH_ENGINE_DATA_IMAGES_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecoach::engine {

// Pixels in memory, row by row from the top, with the channels of a pixel together: gray, or red,
// green and blue.
struct Image {
  Image() = default;
  Image(int64_t rows, int64_t columns, int channels_of_pixel)
      : height(rows),
        width(columns),
        channels(channels_of_pixel),
        pixels(static_cast<size_t>(rows * columns * channels_of_pixel)) {}

  uint8_t* Row(int64_t y) { return pixels.data() + y * width * channels; }
  const uint8_t* Row(int64_t y) const { return pixels.data() + y * width * channels; }

  int64_t height = 0, width = 0;
  int channels = 0;  // 1 or 3
  std::vector<uint8_t> pixels;
};

// A part of an image.
struct ImageBox {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_IMAGES_IMAGE_H_
