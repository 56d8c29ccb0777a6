#include "engine/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/catch_exceptions.h"

namespace stagecoach::engine {

namespace {

absl::Status CheckRate(float rate) {
  if (rate >= 0.0F && std::isfinite(rate)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("learning rate: ", rate, " is not a finite number of 0 or more"));
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

absl::StatusOr<float> LearningRate::At(int64_t step) const {
  if (kind == Kind::kConstant) return peak;
  if (kind == Kind::kFunction) {
    float rate = 0.0F;
    RETURN_IF_ERROR(CatchExceptions(absl::StrCat("step ", step), [&] {
      rate = function(step);
      return CheckRate(rate);
    }));
    return rate;
  }
  if (step < warmup_steps) {
    return static_cast<float>(peak * static_cast<double>(step) / static_cast<double>(warmup_steps));
  }
  const auto length = static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / length);
  const double share = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return static_cast<float>(minimum + (static_cast<double>(peak) - minimum) * share);
}

absl::Status CheckLearningRate(const LearningRate& rate) {
  if (rate.kind == LearningRate::Kind::kFunction) {
    if (rate.function) return absl::OkStatus();
    return absl::InvalidArgumentError("learning rate: a function that is empty");
  }
  RETURN_IF_ERROR(CheckRate(rate.peak));
  if (rate.warmup_steps < 0 || rate.total_steps < rate.warmup_steps) {
    return absl::InvalidArgumentError(absl::StrCat("learning rate: ", rate.warmup_steps,
                                                   " warm-up steps of ", rate.total_steps,
                                                   " steps in all"));
  }
  if (!(rate.minimum >= 0.0F && rate.minimum <= rate.peak)) {
    return absl::InvalidArgumentError(absl::StrCat("learning rate: a minimum of ", rate.minimum,
                                                   " is not from 0 to the peak, ", rate.peak));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
