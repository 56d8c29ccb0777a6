#include "engine/diagnosis/stragglers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace stagecoach::engine {
namespace {

// Share of a slow device's bound below which the device is no longer slow.
constexpr double kRecovered = 0.8;
constexpr double kLeastShareOfStep = 0.05;

// Returns the middle value, or the lower one of two. Changes the order. Pre-condition: there are
// some.
template <typename T>
T MedianOf(absl::Span<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string ToText(const StepTime& step_time) {
  return absl::StrCat(step_time.before_ns, " ", step_time.least_ns, " ", step_time.median_ns, " ",
                      step_time.step_ns, " ", step_time.steps);
}

std::optional<StepTime> StepTimeFromText(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  StepTime step_time;
  int64_t* const numbers[] = {&step_time.before_ns, &step_time.least_ns, &step_time.median_ns,
                              &step_time.step_ns, &step_time.steps};
  if (words.size() != std::size(numbers)) return std::nullopt;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::SimpleAtoi(words[i], numbers[i]) || *numbers[i] < 0) return std::nullopt;
  }
  return step_time;
}

bool StepTimeMeter::Add(int64_t step, int64_t compute_ns, int64_t step_ns) {
  ++steps_;
  compute_ns_ += compute_ns;
  step_ns_ += step_ns;
  if (step_ns_ < kLeastSampleNs) return false;
  last_[static_cast<size_t>(samples_) % last_.size()] = {
      .compute_ns = compute_ns_ / steps_, .step_ns = step_ns_ / steps_, .last_step = step};
  steps_ = compute_ns_ = step_ns_ = 0;
  if (samples_++ != kSamples) return true;
  // The first sample does not count.
  std::array<int64_t, kSamples> early;
  for (size_t i = 0; i < kSamples; ++i) early[i] = last_[i + 1].compute_ns;
  before_ns_ = MedianOf(absl::MakeSpan(early));
  return true;
}

std::optional<StepTime> StepTimeMeter::step_time() const {
  if (samples_ < 2 * kSamples + 1) return std::nullopt;
  const auto back = [&](int64_t samples) -> const Sample& {
    return last_[static_cast<size_t>(samples_ - samples) % last_.size()];
  };
  std::array<int64_t, kSamples> late;
  int64_t step_ns = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    const Sample& sample = back(static_cast<int64_t>(i) + 1);
    late[i] = sample.compute_ns;
    step_ns += sample.step_ns / kSamples;
  }
  return StepTime{.before_ns = before_ns_,
                  .least_ns = *std::min_element(late.begin(), late.end()),
                  .median_ns = MedianOf(absl::MakeSpan(late)),
                  .step_ns = step_ns,
                  .steps = back(1).last_step - back(kSamples + 1).last_step};
}

StragglerDetector::StragglerDetector(std::vector<std::string> names, int replicas)
    : names_(std::move(names)),
      replicas_(static_cast<size_t>(replicas)),
      is_slow_(names_.size(), false) {
  ratios_.reserve(names_.size());
  of_replicas_.reserve(replicas_);
}

std::optional<StragglerDetector::Bound> StragglerDetector::BoundOf(
    absl::Span<const std::optional<StepTime>> step_times, size_t device) {
  ratios_.clear();
  of_replicas_.clear();
  for (size_t other = 0; other < step_times.size(); ++other) {
    if (other == device || !step_times[other].has_value()) continue;
    const StepTime& step_time = *step_times[other];
    if (other / replicas_ == device / replicas_) of_replicas_.push_back(step_time.median_ns);
    if (step_time.before_ns == 0) continue;
    ratios_.push_back(static_cast<double>(step_time.median_ns) /
                      static_cast<double>(step_time.before_ns));
  }
  std::optional<Bound> bound;
  if (!ratios_.empty()) {
    // A rank is not slow because the others have become faster.
    const double others = std::max(1.0, MedianOf(absl::MakeSpan(ratios_)));
    bound = {kFactor * others * static_cast<double>(step_times[device]->before_ns), false};
  }
  if (!of_replicas_.empty()) {
    const double ns = kFactor * static_cast<double>(MedianOf(absl::MakeSpan(of_replicas_)));
    if (!bound.has_value() || ns < bound->ns) bound = {ns, true};
  }
  return bound;
}

std::vector<std::string> StragglerDetector::Judge(
    absl::Span<const std::optional<StepTime>> step_times) {
  std::vector<std::string> sentences;
  for (size_t device = 0; device < step_times.size(); ++device) {
    if (!step_times[device].has_value()) continue;
    const std::optional<Bound> bound = BoundOf(step_times, device);
    if (!bound.has_value() || bound->ns == 0.0) continue;
    const StepTime& step_time = *step_times[device];
    const double normal_ns = bound->ns / kFactor;
    const auto least_ns = static_cast<double>(step_time.least_ns);
    const auto median_ns = static_cast<double>(step_time.median_ns);
    const bool matters =
        least_ns - normal_ns >= kLeastShareOfStep * static_cast<double>(step_time.step_ns);
    if (is_slow_[device]) {
      is_slow_[device] = median_ns >= kRecovered * bound->ns;
    } else if (least_ns >= bound->ns && matters) {
      is_slow_[device] = true;
      sentences.push_back(absl::StrCat(
          names_[device], " is slow: its computing has taken ",
          absl::StrFormat("%.1f", median_ns / normal_ns), " times as long as ",
          bound->is_of_replicas ? "that of the other replicas" : "before, against the other ranks",
          ", for ", step_time.steps, " steps"));
    }
  }
  return sentences;
}

}  // namespace stagecoach::engine
