#include "engine/train/save_interval.h"

#include <algorithm>
#include <cmath>

namespace stagecoach::engine {

absl::Duration SaveInterval(absl::Duration cost, absl::Duration between_failures) {
  constexpr int kLargestShare = 100;
  const double between = std::max(absl::ToDoubleSeconds(between_failures), 0.0);  // negative if a
                                                                                  // clock was set
  const double best = std::sqrt(2.0 * absl::ToDoubleSeconds(cost) * between);
  return std::max({absl::Seconds(1), kLargestShare * cost, absl::Seconds(best)});
}

}  // namespace stagecoach::engine
