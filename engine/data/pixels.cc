#include "engine/data/pixels.h"

#include <array>
#include <cmath>

namespace stagecoach::engine {

PixelStatistics MeasurePixels(absl::Span<const uint8_t> pixels) {
  std::array<int64_t, 256> histogram = {};
  for (const uint8_t pixel : pixels) ++histogram[pixel];
  const double count = static_cast<double>(pixels.size());
  double mean = 0;
  for (int v = 0; v < 256; ++v) mean += histogram[v] * (v / 255.0) / count;
  double variance = 0;
  for (int v = 0; v < 256; ++v) variance += histogram[v] * std::pow(v / 255.0 - mean, 2) / count;
  return {mean, std::sqrt(variance)};
}

}  // namespace stagecoach::engine
