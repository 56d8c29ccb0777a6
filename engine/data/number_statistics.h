#ifndef STAGECOACH_ENGINE_DATA_NUMBER_STATISTICS_H_
#define STAGECOACH_ENGINE_DATA_NUMBER_STATISTICS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// The statistics by which numbers are standardized.
struct NumberStatistics {
  double mean = 0.0;
  double stddev = 0.0;  // exactly 0 if all are equal
};

// Computes the statistics. Pre-condition: `values` is not empty.
NumberStatistics MeasureNumbers(absl::Span<const double> values);

// Returns InvalidArgument, about `place`, if all labels of the training rows are one number; the
// statistics are theirs.
absl::Status CheckLabelsDiffer(absl::string_view place, const NumberStatistics& labels);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_NUMBER_STATISTICS_H_
