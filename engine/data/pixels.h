#ifndef STAGECOACH_ENGINE_DATA_PIXELS_H_
#define STAGECOACH_ENGINE_DATA_PIXELS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace stagecoach::engine {

// The statistics by which images are standardized: those of all pixels, on the scale where white is
// 1.
struct PixelStatistics {
  double mean;
  double stddev;
};

// Computes them from the exact histogram.
PixelStatistics MeasurePixels(absl::Span<const uint8_t> pixels);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_PIXELS_H_
