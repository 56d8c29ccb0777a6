#ifndef STAGECOACH_ENGINE_TRAIN_STOP_CONDITION_H_
#define STAGECOACH_ENGINE_TRAIN_STOP_CONDITION_H_

#include <cstdint>
#include <string>

#include "engine/checkpoint/metrics.h"

namespace stagecoach::engine {

// The condition under which a run ends early: a metric of an evaluation compared with a number,
// such as "test_accuracy>0.9".
struct StopCondition {
  enum class Comparison : uint8_t { kAbove, kAtLeast, kBelow, kAtMost };

  std::string metric;  // MetricTypes
  Comparison comparison = Comparison::kAbove;
  double bound = 0.0;  // in [0, 1] for a share
  std::string text;    // the text that it was read from

  double ValueIn(const Metrics& metrics) const;
  // Returns false for NaN.
  bool IsMet(const Metrics& metrics) const;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_STOP_CONDITION_H_
