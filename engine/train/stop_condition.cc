#include "engine/train/stop_condition.h"

namespace stagecoach::engine {

using Comparison = StopCondition::Comparison;

double StopCondition::ValueIn(const Metrics& metrics) const { return metrics.ValueOf(metric); }

bool StopCondition::IsMet(const Metrics& metrics) const {
  const double value = ValueIn(metrics);
  switch (comparison) {
    case Comparison::kAbove:
      return value > bound;
    case Comparison::kAtLeast:
      return value >= bound;
    case Comparison::kBelow:
      return value < bound;
    case Comparison::kAtMost:
      return value <= bound;
  }
  return false;
}

}  // namespace stagecoach::engine
