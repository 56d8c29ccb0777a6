#include "engine/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

float LearningRate::At(int64_t step) const {
  if (kind == Kind::kConstant) return peak;
  if (step < warmup_steps) {
    return static_cast<float>(peak * static_cast<double>(step) / static_cast<double>(warmup_steps));
  }
  const auto length = static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / length);
  const double share = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return static_cast<float>(minimum + (static_cast<double>(peak) - minimum) * share);
}

absl::Status CheckLearningRate(const LearningRate& rate) {
  if (!(rate.peak >= 0.0F) || !std::isfinite(rate.peak)) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning rate: ", rate.peak, " is not a finite number of 0 or more"));
  }
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
