#include "engine/checkpoint/metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_replace.h"

namespace stagecoach::engine {

double Metrics::ValueOf(absl::string_view name) const {
  if (name == "train_loss") return train_loss;
  if (name == "test_loss") return test_loss;
  if (name == "train_accuracy") return train_accuracy;
  if (name == "test_accuracy") return test_accuracy;
  if (name == "test_perplexity") return std::exp(test_loss);
  const auto found = more.find(std::string(name));
  return found == more.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

const std::vector<MetricType>& MetricTypes() {
  static const auto* const types = new std::vector<MetricType>{
      {.name = "train_loss", .is_of_classes = false, .is_share = false, .larger_is_better = false},
      {.name = "test_loss", .is_of_classes = false, .is_share = false, .larger_is_better = false},
      {.name = "train_accuracy", .is_of_classes = true, .is_share = true, .larger_is_better = true},
      {.name = "test_accuracy", .is_of_classes = true, .is_share = true, .larger_is_better = true},
      {.name = "test_perplexity",
       .is_of_classes = true,
       .is_share = false,
       .larger_is_better = false},
      {.name = "test_top5", .is_of_classes = true, .is_share = true, .larger_is_better = true},
      {.name = "test_f1", .is_of_classes = true, .is_share = true, .larger_is_better = true},
      {.name = "test_auc", .is_of_classes = true, .is_share = true, .larger_is_better = true}};
  return *types;
}

std::vector<std::string> MetricNames() {
  std::vector<std::string> names;
  for (const MetricType& type : MetricTypes()) names.emplace_back(type.name);
  return names;
}

const MetricType& MetricOf(absl::string_view name) {
  const std::vector<MetricType>& types = MetricTypes();
  const auto found = std::find_if(types.begin(), types.end(),
                                  [&](const MetricType& type) { return type.name == name; });
  static constexpr MetricType kOwn = {
      .name = "own", .is_of_classes = false, .is_share = false, .larger_is_better = true};
  return found != types.end() ? *found : kOwn;
}

bool IsBetter(absl::string_view metric, double value, double than) {
  return MetricOf(metric).larger_is_better ? value > than : value < than;
}

std::string DescribeMetric(absl::string_view metric) {
  return absl::StrReplaceAll(metric, {{"_", " "}});
}

}  // namespace stagecoach::engine
