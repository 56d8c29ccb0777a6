#include "engine/train/class_metrics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace stagecoach::engine {
namespace {

constexpr char kTop5[] = "test_top5";
constexpr char kF1[] = "test_f1";
constexpr char kAuc[] = "test_auc";
constexpr int64_t kTop = 5;

// Appends log(p / (1 - p)) of each class's probability p, which orders as p does but does not round
// to the same number near 1.
void AppendLogOdds(absl::Span<const float> outputs, std::vector<float>& log_odds) {
  const double maximum = *std::max_element(outputs.begin(), outputs.end());
  double sum = 0.0;
  for (const float output : outputs) sum += std::exp(static_cast<double>(output) - maximum);
  for (size_t c = 0; c < outputs.size(); ++c) {
    const double own = std::exp(static_cast<double>(outputs[c]) - maximum);
    double others = sum - own;
    // The difference has no digits left if this class has nearly all of the sum.
    if (others < 0.5 * sum) {
      others = 0.0;
      for (size_t other = 0; other < outputs.size(); ++other) {
        if (other == c) continue;
        others += std::exp(static_cast<double>(outputs[other]) - maximum);
      }
    }
    log_odds.push_back(
        static_cast<float>(static_cast<double>(outputs[c]) - maximum - std::log(others)));
  }
}

}  // namespace

std::vector<std::string> MetricsOfOutputs() { return {kTop5, kF1, kAuc}; }

bool IsOfOutputs(absl::string_view metric) {
  return metric == kTop5 || metric == kF1 || metric == kAuc;
}

ClassMetrics::ClassMetrics(const std::vector<std::string>& metrics, int64_t classes)
    : metrics_(metrics),
      classes_(static_cast<size_t>(classes)),
      ranks_(std::find(metrics.begin(), metrics.end(), kAuc) != metrics.end()),
      labelled_(classes_),
      predicted_(classes_),
      right_(classes_) {}

void ClassMetrics::Add(absl::Span<const float> outputs, int32_t label) {
  const auto own = static_cast<size_t>(label);
  const auto predicted =
      static_cast<size_t>(std::max_element(outputs.begin(), outputs.end()) - outputs.begin());
  ++rows_;
  ++labelled_[own];
  ++predicted_[predicted];
  right_[own] += predicted == own ? 1 : 0;
  int64_t larger = 0;
  for (size_t c = 0; c < outputs.size(); ++c) {
    // An output that is NaN is not smaller.
    const bool is_before = c < own ? !(outputs[c] < outputs[own]) : !(outputs[c] <= outputs[own]);
    larger += c != own && is_before ? 1 : 0;
  }
  among_top_ += larger < kTop ? 1 : 0;
  if (!ranks_) return;
  labels_.push_back(label);
  AppendLogOdds(outputs, log_odds_);
}

std::map<std::string, double> ClassMetrics::Results() const {
  std::map<std::string, double> results;
  for (const std::string& metric : metrics_) {
    results[metric] = metric == kTop5 ? TopShare() : metric == kF1 ? MacroF1() : MacroAuc();
  }
  return results;
}

double ClassMetrics::TopShare() const {
  return static_cast<double>(among_top_) / static_cast<double>(rows_);
}

double ClassMetrics::MacroF1() const {
  double sum = 0.0;
  int64_t count = 0;
  for (size_t c = 0; c < classes_; ++c) {
    const int64_t both = labelled_[c] + predicted_[c];
    if (both == 0) continue;
    sum += 2.0 * static_cast<double>(right_[c]) / static_cast<double>(both);
    ++count;
  }
  return sum / static_cast<double>(count);
}

double ClassMetrics::MacroAuc() const {
  if (classes_ == 2) return AucOf(1);
  double sum = 0.0;
  int64_t count = 0;
  for (size_t c = 0; c < classes_; ++c) {
    if (labelled_[c] == 0 || labelled_[c] == rows_) continue;
    sum += AucOf(c);
    ++count;
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

// By the ranks of its samples (Mann & Whitney 1947); equal ones share the mean of theirs.
double ClassMetrics::AucOf(size_t one) const {
  const auto positive = static_cast<double>(labelled_[one]);
  const double negative = static_cast<double>(rows_) - positive;
  if (positive == 0.0 || negative == 0.0) return std::numeric_limits<double>::quiet_NaN();
  std::vector<float> odds(labels_.size());
  for (size_t row = 0; row < labels_.size(); ++row) odds[row] = log_odds_[row * classes_ + one];
  const bool is_finite =
      std::none_of(odds.begin(), odds.end(), [](float x) { return std::isnan(x); });
  if (!is_finite) return std::numeric_limits<double>::quiet_NaN();
  std::vector<size_t> order(labels_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return odds[a] < odds[b]; });
  double ranks = 0.0;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    double positives = 0.0;
    while (end < order.size() && odds[order[end]] == odds[order[begin]]) {
      positives += static_cast<size_t>(labels_[order[end]]) == one ? 1.0 : 0.0;
      ++end;
    }
    ranks += positives * 0.5 * static_cast<double>(begin + 1 + end);
    begin = end;
  }
  return (ranks - positive * (positive + 1.0) / 2.0) / (positive * negative);
}

}  // namespace stagecoach::engine
