#include "engine/data/number_statistics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/error_class.h"

namespace stagecoach::engine {

NumberStatistics MeasureNumbers(absl::Span<const double> values) {
  const auto count = static_cast<double>(values.size());
  NumberStatistics statistics;
  for (const double value : values) statistics.mean += value / count;
  double variance = 0.0;
  for (const double value : values) variance += std::pow(value - statistics.mean, 2) / count;
  // Rounding in the mean produces a small variance even for equal values, so these are detected
  // separately.
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  if (*lowest < *highest && variance > 0) statistics.stddev = std::sqrt(variance);
  return statistics;
}

absl::Status CheckLabelsDiffer(absl::string_view place, const NumberStatistics& labels) {
  if (labels.stddev > 0.0) return absl::OkStatus();
  return base::DataError(absl::StrFormat(
      "%s: every label to train on is %g: there is nothing to predict", place, labels.mean));
}

}  // namespace stagecoach::engine
