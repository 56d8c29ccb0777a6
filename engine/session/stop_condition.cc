#include "engine/session/stop_condition.h"

#include "absl/strings/match.h"

namespace stagecoach::engine {

using Comparison = StopCondition::Comparison;

bool StopCondition::is_accuracy() const { return absl::EndsWith(metric, "_accuracy"); }

double StopCondition::ValueIn(const Metrics& metrics) const {
  return metric == "train_loss"       ? metrics.train_loss
         : metric == "test_loss"      ? metrics.test_loss
         : metric == "train_accuracy" ? metrics.train_accuracy
                                      : metrics.test_accuracy;
}

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
