#ifndef STAGECOACH_ENGINE_CHECKPOINT_METRICS_H_
#define STAGECOACH_ENGINE_CHECKPOINT_METRICS_H_

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// The results of an evaluation of a run.
struct Metrics {
  // Over the steps of the epoch so far; NaN in checkpoints of older programs.
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double train_accuracy = std::numeric_limits<double>::quiet_NaN();
  double test_loss = 0.0;
  double test_accuracy = std::numeric_limits<double>::quiet_NaN();
  std::map<std::string, double> more;  // those that were asked for: of MetricTypes, or a caller's

  // Returns the value of a metric; NaN if it is not known.
  double ValueOf(absl::string_view name) const;

  friend bool operator==(const Metrics&, const Metrics&) = default;
};

// A metric by which runs may end and checkpoints be chosen.
struct MetricType {
  const char* name;
  bool is_of_classes;  // and has no meaning for numbers
  bool is_share;       // from 0 to 1
  bool larger_is_better;
};

// Returns all of them.
const std::vector<MetricType>& MetricTypes();
std::vector<std::string> MetricNames();
// Returns the one of this name; for any other name, a metric of the caller's own
// (engine/train/fit.h), whose larger values are better.
const MetricType& MetricOf(absl::string_view name);

// Returns whether the value of a metric is better than another one. NaN is not better than
// anything.
bool IsBetter(absl::string_view metric, double value, double than);

// Returns "test accuracy", for messages.
std::string DescribeMetric(absl::string_view metric);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_METRICS_H_
