#include "engine/train/class_metrics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::testing::UnorderedElementsAre;

std::map<std::string, double> MetricsOf(const std::vector<float>& outputs,
                                        const std::vector<int32_t>& labels, size_t classes) {
  ClassMetrics metrics(MetricsOfOutputs(), static_cast<int64_t>(classes));
  for (size_t row = 0; row < labels.size(); ++row) {
    metrics.Add(absl::MakeConstSpan(outputs).subspan(row * classes, classes), labels[row]);
  }
  return metrics.Results();
}

double ProbabilityOf(const std::vector<float>& outputs, size_t row, size_t c, size_t classes) {
  double sum = 0.0;
  for (size_t k = 0; k < classes; ++k)
    sum += std::exp(static_cast<double>(outputs[row * classes + k]));
  return std::exp(static_cast<double>(outputs[row * classes + c])) / sum;
}

// Counts all pairs of a sample of the class and another one.
double AucByPairs(const std::vector<float>& outputs, const std::vector<int32_t>& labels, size_t c,
                  size_t classes) {
  double won = 0.0, pairs = 0.0;
  for (size_t a = 0; a < labels.size(); ++a) {
    if (labels[a] != static_cast<int32_t>(c)) continue;
    for (size_t b = 0; b < labels.size(); ++b) {
      if (labels[b] == static_cast<int32_t>(c)) continue;
      const double one = ProbabilityOf(outputs, a, c, classes);
      const double other = ProbabilityOf(outputs, b, c, classes);
      won += one > other ? 1.0 : one == other ? 0.5 : 0.0;
      pairs += 1.0;
    }
  }
  return won / pairs;
}

TEST(ClassMetrics, AreThoseOfTheirDefinitions) {
  for (const size_t classes : {2, 3, 7}) {
    SCOPED_TRACE(classes);
    const auto rows = int64_t{60};
    std::vector<float> outputs = RandomNormal(rows * static_cast<int64_t>(classes), 1);
    const std::vector<int32_t> labels = RandomLabels(rows, static_cast<int64_t>(classes), 2);
    // Outputs that say something, some of them equal to others.
    for (size_t row = 0; row < labels.size(); ++row) {
      outputs[row * classes + static_cast<size_t>(labels[row])] += 1.0F;
      if (row % 3 == 0)
        std::fill_n(outputs.begin() + static_cast<int64_t>(row * classes), classes, 0.5F);
    }
    std::vector<double> right(classes), labelled(classes), predicted(classes);
    double top = 0.0;
    for (size_t row = 0; row < labels.size(); ++row) {
      std::vector<std::pair<float, int>> order;
      for (size_t c = 0; c < classes; ++c) {
        order.emplace_back(-outputs[row * classes + c], static_cast<int>(c));
      }
      std::sort(order.begin(), order.end());
      for (size_t i = 0; i < std::min<size_t>(5, classes); ++i) {
        top += order[i].second == labels[row] ? 1.0 : 0.0;
      }
      const auto own = static_cast<size_t>(labels[row]);
      const auto first = static_cast<size_t>(order[0].second);
      ++labelled[own];
      ++predicted[first];
      right[own] += own == first ? 1.0 : 0.0;
    }
    double f1 = 0.0, auc = 0.0;
    for (size_t c = 0; c < classes; ++c) {
      const double precision = predicted[c] > 0 ? right[c] / predicted[c] : 0.0;
      const double recall = labelled[c] > 0 ? right[c] / labelled[c] : 0.0;
      f1 += precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0.0;
      auc += AucByPairs(outputs, labels, c, classes);
    }
    const auto metrics = MetricsOf(outputs, labels, classes);
    EXPECT_NEAR(metrics.at("test_top5"), top / static_cast<double>(rows), 1e-12);
    EXPECT_NEAR(metrics.at("test_f1"), f1 / static_cast<double>(classes), 1e-12);
    EXPECT_NEAR(
        metrics.at("test_auc"),
        classes == 2 ? AucByPairs(outputs, labels, 1, 2) : auc / static_cast<double>(classes),
        1e-12);
  }
}

// In float, both probabilities are 1.
TEST(ClassMetrics, TellApartProbabilitiesThatRoundToOne) {
  EXPECT_EQ(MetricsOf({0, 40, 0, 41}, {0, 1}, 2).at("test_auc"), 1.0);
  EXPECT_EQ(MetricsOf({0, 41, 0, 40}, {0, 1}, 2).at("test_auc"), 0.0);
}

TEST(ClassMetrics, OfClassesThatDoNotOccur) {
  const auto metrics = MetricsOf({5, 0, 0, 4, 0, 0}, {0, 0}, 3);
  EXPECT_EQ(metrics.at("test_f1"), 1.0);
  EXPECT_TRUE(std::isnan(metrics.at("test_auc")));
  EXPECT_THAT(MetricsOfOutputs(), UnorderedElementsAre("test_top5", "test_f1", "test_auc"));
  for (const std::string& metric : MetricsOfOutputs()) EXPECT_TRUE(IsOfOutputs(metric));
  EXPECT_FALSE(IsOfOutputs("test_loss"));
}

}  // namespace
}  // namespace stagecoach::engine
