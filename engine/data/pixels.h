#ifndef STAGECOACH_ENGINE_DATA_PIXELS_H_
#define STAGECOACH_ENGINE_DATA_PIXELS_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/sample_spec.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The statistics by which images are standardized: those of all pixels, on the scale where white is
// 1.
struct PixelStatistics {
  double mean;
  double stddev;
};

// The number of pixels of each value.
using PixelHistogram = std::array<int64_t, 256>;

// Computes them from the exact histogram.
PixelStatistics MeasurePixels(const PixelHistogram& histogram);
PixelStatistics MeasurePixels(absl::Span<const uint8_t> pixels);

// Returns the specification of images of 1 byte per value, where a pixel v stands for (v / 255 -
// mean) / stddev, with a label of that many classes (0: without). InvalidArgument if there is 1
// class, `mean` is not finite, or `stddev` is not finite and positive.
absl::StatusOr<SampleSpec> ImageSpec(const kernels::Shape& image, int64_t classes, double mean,
                                     double stddev);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_PIXELS_H_
