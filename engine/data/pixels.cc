#include "engine/data/pixels.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error_class.h"

namespace stagecoach::engine {

PixelStatistics MeasurePixels(absl::Span<const uint8_t> pixels) {
  PixelHistogram histogram = {};
  for (const uint8_t pixel : pixels) ++histogram[pixel];
  return MeasurePixels(histogram);
}

PixelStatistics MeasurePixels(const PixelHistogram& histogram) {
  const double count =
      static_cast<double>(std::accumulate(histogram.begin(), histogram.end(), int64_t{0}));
  double mean = 0;
  for (int v = 0; v < 256; ++v) mean += histogram[v] * (v / 255.0) / count;
  double variance = 0;
  for (int v = 0; v < 256; ++v) variance += histogram[v] * std::pow(v / 255.0 - mean, 2) / count;
  return {mean, std::sqrt(variance)};
}

absl::StatusOr<SampleSpec> ImageSpec(const kernels::Shape& image, int64_t classes, double mean,
                                     double stddev) {
  if (classes == 1)
    return base::DataError("fewer than 2 classes (1): there is nothing to tell apart");
  if (!std::isfinite(mean) || !std::isfinite(stddev) || stddev <= 0) {
    return base::DataError(absl::StrFormat(
        "mean %g and standard deviation %g of the pixels, expected finite numbers, the second "
        "positive: images of a single shade cannot be standardized",
        mean, stddev));
  }
  TensorSpec tensor = {.name = "features", .type = kernels::DType::kUint8, .shape = image};
  for (int pixel = 0; pixel < 256; ++pixel) {
    tensor.value_of_byte.push_back(static_cast<float>((pixel / 255.0 - mean) / stddev));
  }
  SampleSpec spec;
  spec.inputs.push_back(std::move(tensor));
  if (classes > 0) spec.target = TargetSpec::ClassLabel(classes);
  return spec;
}

}  // namespace stagecoach::engine
