#include "engine/data/images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace stagecoach::engine {
namespace {

// Weights have as many bits behind the point as leave room for the sum of 8-bit pixels.
constexpr int kWeightBits = 32 - 8 - 2;
constexpr int32_t kHalfWeight = 1 << (kWeightBits - 1);

// How the pixels of a line become those of a line of another length: pixel i is a sum over those
// from first[i] on.
struct LineWeights {
  int64_t most = 0;  // per pixel
  std::vector<int64_t> first, count;
  std::vector<int32_t> weights;  // (pixels, most)

  const int32_t* Of(int64_t pixel) const { return weights.data() + pixel * most; }
};

// Computes a triangle's weights, as wide as the pixels of the longer line.
LineWeights WeightsOf(int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double support = std::max(scale, 1.0);
  LineWeights line;
  line.most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  line.weights.resize(static_cast<size_t>(to * line.most));
  std::vector<double> exact(static_cast<size_t>(line.most));
  for (int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(0, std::lround(center - support));
    const int64_t end = std::min<int64_t>(from, std::lround(center + support));
    const double shrink = 1.0 / support;
    double sum = 0.0;
    for (int64_t k = 0; k < end - first; ++k) {
      const double distance = (static_cast<double>(k + first) - center + 0.5) * shrink;
      exact[static_cast<size_t>(k)] = std::max(0.0, 1.0 - std::abs(distance));
      sum += exact[static_cast<size_t>(k)];
    }
    for (int64_t k = 0; k < end - first; ++k) {
      double weight = exact[static_cast<size_t>(k)];
      if (sum != 0.0) weight /= sum;
      line.weights[static_cast<size_t>(i * line.most + k)] =
          static_cast<int32_t>(std::lround(weight * (1 << kWeightBits)));
    }
    line.first.push_back(first);
    line.count.push_back(end - first);
  }
  return line;
}

uint8_t Rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 0xFF));
}

// Resizes the lines of a box to another width.
Image ResizeLines(const Image& image, const ImageBox& box, int64_t width) {
  const LineWeights line = WeightsOf(box.width, width);
  const int channels = image.channels;
  Image resized(box.height, width, channels);
  for (int64_t y = 0; y < box.height; ++y) {
    const uint8_t* const from = image.Row(box.top + y) + box.left * channels;
    uint8_t* to = resized.Row(y);
    for (int64_t x = 0; x < width; ++x) {
      const int32_t* const weights = line.Of(x);
      const int64_t count = line.count[static_cast<size_t>(x)];
      const uint8_t* const first = from + line.first[static_cast<size_t>(x)] * channels;
      for (int channel = 0; channel < channels; ++channel) {
        int32_t sum = kHalfWeight;
        for (int64_t k = 0; k < count; ++k) sum += first[k * channels + channel] * weights[k];
        *to++ = Rounded(sum);
      }
    }
  }
  return resized;
}

Image ResizeColumns(const Image& image, int64_t height) {
  const LineWeights line = WeightsOf(image.height, height);
  const int64_t row_bytes = image.width * image.channels;
  Image resized(height, image.width, image.channels);
  std::vector<int32_t> sums(static_cast<size_t>(row_bytes));
  for (int64_t y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), kHalfWeight);
    for (int64_t k = 0; k < line.count[static_cast<size_t>(y)]; ++k) {
      const uint8_t* const from = image.Row(line.first[static_cast<size_t>(y)] + k);
      const int32_t weight = line.Of(y)[k];
      for (int64_t i = 0; i < row_bytes; ++i) sums[static_cast<size_t>(i)] += from[i] * weight;
    }
    std::transform(sums.begin(), sums.end(), resized.Row(y), Rounded);
  }
  return resized;
}

Image CopyOf(const Image& image, const ImageBox& box) {
  Image part(box.height, box.width, image.channels);
  for (int64_t y = 0; y < box.height; ++y) {
    std::copy_n(image.Row(box.top + y) + box.left * image.channels, box.width * image.channels,
                part.Row(y));
  }
  return part;
}

}  // namespace

Image Resize(const Image& image, const ImageBox& box, int64_t height, int64_t width) {
  STAGECOACH_CHECK(height > 0 && width > 0 && box.height > 0 && box.width > 0 && box.top >= 0 &&
                       box.left >= 0 && box.top + box.height <= image.height &&
                       box.left + box.width <= image.width,
                   "a box outside of an image");
  Image lines = box.width == width ? CopyOf(image, box) : ResizeLines(image, box, width);
  return box.height == height ? lines : ResizeColumns(lines, height);
}

Image FitInto(const Image& image, int64_t height, int64_t width) {
  const bool is_narrow = image.width * height < image.height * width;
  // Rounded down, as torchvision does.
  const auto other = [](int64_t side, int64_t longer, int64_t shorter) {
    return static_cast<int64_t>(static_cast<double>(side * longer) / static_cast<double>(shorter));
  };
  const int64_t new_width =
      is_narrow ? width : std::max(width, other(height, image.width, image.height));
  const int64_t new_height =
      is_narrow ? std::max(height, other(width, image.height, image.width)) : height;
  // Half a pixel is rounded to even.
  const auto middle = [](int64_t longer, int64_t shorter) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(longer - shorter) / 2.0));
  };
  const Image resized = Resize(image, {0, 0, image.height, image.width}, new_height, new_width);
  return CopyOf(resized, {middle(new_height, height), middle(new_width, width), height, width});
}

}  // namespace stagecoach::engine
