#include "engine/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catch_exceptions.h"
#include "base/status_macros.h"

namespace stagecoach::engine {

namespace {

constexpr double kOneCycleRise = 25.0;  // PyTorch's

absl::Status CheckRate(float rate) {
  if (rate >= 0.0F && std::isfinite(rate)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("learning rate: ", rate, " is not a finite number of 0 or more"));
}

// From 1 to 0.
double HalfCosine(double progress) { return 0.5 * (1.0 + std::cos(std::numbers::pi * progress)); }

// From 0 at step `from` to 1 at step `to`, and after that.
double Progress(int64_t step, int64_t from, int64_t to) {
  const auto length = static_cast<double>(std::max<int64_t>(to - from, 1));
  return std::min(1.0, static_cast<double>(step - from) / length);
}

float Falling(const LearningRate& rate, double share) {
  const double minimum = rate.minimum;
  return static_cast<float>(minimum + (static_cast<double>(rate.peak) - minimum) * share);
}

double WarmingUp(const LearningRate& rate, int64_t step) {
  const double peak = rate.peak;
  if (rate.kind != LearningRate::Kind::kOneCycle) {
    return peak * static_cast<double>(step) / static_cast<double>(rate.warmup_steps);
  }
  const double first = peak / kOneCycleRise;
  return peak + (first - peak) * HalfCosine(Progress(step, 1, rate.warmup_steps));
}

}  // namespace

LearningRate LearningRate::Constant(float value) {
  LearningRate rate;
  rate.peak = value;
  return rate;
}

LearningRate LearningRate::WarmupCosine(float peak, int64_t warmup_steps, int64_t total_steps,
                                        float minimum) {
  LearningRate rate;
  rate.kind = Kind::kWarmupCosine;
  rate.peak = peak;
  rate.warmup_steps = warmup_steps;
  rate.total_steps = total_steps;
  rate.minimum = minimum;
  return rate;
}

LearningRate LearningRate::Function(std::function<float(int64_t step)> function) {
  LearningRate rate;
  rate.kind = Kind::kFunction;
  rate.function = std::move(function);
  return rate;
}

bool LearningRate::has_minimum() const {
  return kind == Kind::kWarmupCosine || kind == Kind::kLinear || kind == Kind::kOneCycle ||
         kind == Kind::kWsd;
}

absl::StatusOr<float> LearningRate::At(int64_t step) const {
  if (kind == Kind::kFunction) {
    float rate = 0.0F;
    RETURN_IF_ERROR(base::CatchExceptions(absl::StrCat("step ", step), [&] {
      rate = function(step);
      return CheckRate(rate);
    }));
    return rate;
  }
  if (step < warmup_steps) return static_cast<float>(WarmingUp(*this, step));
  switch (kind) {
    case Kind::kStep: {
      const int64_t drops = (step - std::max<int64_t>(warmup_steps, 1)) / period;
      return static_cast<float>(peak * std::pow(static_cast<double>(factor), drops));
    }
    case Kind::kLinear:
      return Falling(*this, 1.0 - Progress(step, warmup_steps, total_steps));
    case Kind::kWsd: {
      const int64_t stable_to = std::max(warmup_steps, total_steps - period);
      return step <= stable_to ? peak
                               : Falling(*this, 1.0 - Progress(step, stable_to, total_steps));
    }
    case Kind::kWarmupCosine:
    case Kind::kOneCycle:
      return Falling(*this, HalfCosine(Progress(step, warmup_steps, total_steps)));
    case Kind::kConstant:
    case Kind::kFunction:
      break;
  }
  return peak;
}

absl::Status CheckLearningRate(const LearningRate& rate) {
  if (rate.kind == LearningRate::Kind::kFunction) {
    if (rate.function) return absl::OkStatus();
    return absl::InvalidArgumentError("learning rate: a function that is empty");
  }
  RETURN_IF_ERROR(CheckRate(rate.peak));
  if (rate.warmup_steps < 0 || (rate.has_minimum() && rate.total_steps < rate.warmup_steps)) {
    return absl::InvalidArgumentError(absl::StrCat("learning rate: ", rate.warmup_steps,
                                                   " warm-up steps of ", rate.total_steps,
                                                   " steps in all"));
  }
  const bool has_period =
      rate.kind == LearningRate::Kind::kStep || rate.kind == LearningRate::Kind::kWsd;
  if (has_period && rate.period < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning rate: a period of ", rate.period, " steps"));
  }
  if (rate.kind == LearningRate::Kind::kWsd && rate.period > rate.total_steps - rate.warmup_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning rate: ", rate.warmup_steps, " warm-up steps and a decay of ",
                     rate.period, " steps, of ", rate.total_steps, " steps in all"));
  }
  if (!(rate.factor >= 0.0F && rate.factor <= 1.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning rate: a factor of ", rate.factor, " is not from 0 to 1"));
  }
  if (!(rate.minimum >= 0.0F && rate.minimum <= rate.peak)) {
    return absl::InvalidArgumentError(absl::StrCat("learning rate: a minimum of ", rate.minimum,
                                                   " is not from 0 to the peak, ", rate.peak));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
