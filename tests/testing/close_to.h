#ifndef STAGECOACH_TESTS_TESTING_CLOSE_TO_H_
#define STAGECOACH_TESTS_TESTING_CLOSE_TO_H_

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

namespace stagecoach::testing {

// Matches a sequence of numbers whose element i is within bounds[i] of expected[i]. Explains the
// element that misses its bound by the largest factor. NaN is close to nothing.
//   EXPECT_THAT(device.Values(y), CloseTo(reference.y, bounds));
MATCHER_P2(CloseToEach, expected, bounds, "is within the bounds of the expected values") {
  if (arg.size() != expected.size() || arg.size() != bounds.size()) {
    *result_listener << "has " << arg.size() << " elements, " << expected.size()
                     << " are expected and " << bounds.size() << " bounds given";
    return false;
  }
  size_t misses = 0;
  size_t worst = 0;
  double worst_excess = -1.0;
  for (size_t i = 0; i < arg.size(); ++i) {
    const double error = std::fabs(static_cast<double>(arg[i]) - expected[i]);
    if (error <= bounds[i]) continue;
    ++misses;
    const double excess = std::isnan(error) ? HUGE_VAL : error / bounds[i];
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  if (misses == 0) return true;
  *result_listener << misses << " of " << arg.size() << " elements are not; worst is element "
                   << worst << ": " << arg[worst] << ", expected " << expected[worst] << " +- "
                   << bounds[worst];
  return false;
}

inline auto CloseTo(std::vector<double> expected, std::vector<double> bounds) {
  return CloseToEach(std::move(expected), std::move(bounds));
}
// Uses one bound for all elements.
inline auto CloseTo(std::vector<double> expected, double bound) {
  std::vector<double> bounds(expected.size(), bound);
  return CloseToEach(std::move(expected), std::move(bounds));
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_CLOSE_TO_H_
