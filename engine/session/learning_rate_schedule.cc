#include "engine/session/learning_rate_schedule.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/session/run_config.h"

namespace stagecoach::engine {
namespace {

using Kind = LearningRate::Kind;

struct NamedSchedule {
  const char* name;
  Kind kind;
  size_t numbers;  // that may follow it
};
constexpr NamedSchedule kSchedules[] = {{"warmup-cosine", Kind::kWarmupCosine, 0},
                                        {"cosine", Kind::kWarmupCosine, 0},
                                        {"constant", Kind::kConstant, 0},
                                        {"linear", Kind::kLinear, 0},
                                        {"step", Kind::kStep, 2},
                                        {"one-cycle", Kind::kOneCycle, 0},
                                        {"wsd", Kind::kWsd, 1}};

// Shares of a run, where no number of steps is given.
constexpr double kLevelShare = 1.0 / 3.0;  // of kStep
constexpr double kDecayShare = 0.2;        // of kWsd
constexpr double kOneCycleWarmup = 0.3;    // PyTorch's, and so is the next
constexpr float kOneCycleFall = 25.0e4F;   // from the peak to the last rate

int64_t ShareOf(int64_t steps, double share) {
  return std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(steps)));
}

// The learning rate, or its peak.
float PeakRateOf(const RunConfig& options, int64_t features) {
  if (options.learning_rate.has_value()) return *options.learning_rate;
  constexpr float kAdapterRate = 2e-4F;  // Dettmers et al. 2023, for models of 7 and 13 billion
  if (!options.lora.empty() && options.optimizer == "adamw") return kAdapterRate;
  const OptimizerType* const found = FindOptimizerType(options.optimizer);
  const OptimizerType& type = found == nullptr ? OptimizerTypes().front() : *found;
  if (type.rate_times_width == 0.0F || NameOfModel(options) != kDefaultModel || features == 0) {
    return type.learning_rate;
  }
  const auto width = static_cast<float>(NetworkSizeOf(options, features).width);
  return std::min(type.learning_rate, type.rate_times_width / width);
}

int64_t WarmupStepsOf(const RunConfig& options, Kind kind, int64_t steps) {
  if (options.warmup_steps.has_value()) return *options.warmup_steps;
  if (kind == Kind::kConstant) return 0;
  return ShareOf(steps, kind == Kind::kOneCycle ? kOneCycleWarmup : kWarmupShare);
}

}  // namespace

std::string LearningRateScheduleNames() {
  return "cosine, constant, linear, step[:N[:X]], one-cycle, wsd[:N]";
}

absl::StatusOr<LearningRateSchedule> ParseLearningRateSchedule(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const auto* const found =
      std::find_if(std::begin(kSchedules), std::end(kSchedules),
                   [&](const NamedSchedule& schedule) { return schedule.name == parts[0]; });
  const auto refuse = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\", expected ", LearningRateScheduleNames()));
  };
  if (found == std::end(kSchedules) || parts.size() > found->numbers + 1) return refuse();
  LearningRateSchedule schedule = {.kind = found->kind};
  if (parts.size() > 1) {
    int64_t period = 0;
    if (!absl::SimpleAtoi(parts[1], &period) || period < 1) return refuse();
    schedule.period = period;
  }
  if (parts.size() > 2) {
    float factor = 0.0F;
    if (!absl::SimpleAtof(parts[2], &factor) || !(factor >= 0.0F && factor <= 1.0F)) {
      return refuse();
    }
    schedule.factor = factor;
  }
  return schedule;
}

absl::StatusOr<LearningRate> LearningRateOf(const RunConfig& options, int64_t features,
                                            int64_t steps) {
  ASSIGN_OR_RETURN(const LearningRateSchedule schedule,
                   ParseLearningRateSchedule(options.learning_rate_schedule));
  LearningRate rate = LearningRate::Constant(PeakRateOf(options, features));
  rate.kind = schedule.kind;
  rate.total_steps = steps;
  rate.warmup_steps = WarmupStepsOf(options, rate.kind, steps);
  if (rate.warmup_steps > steps) {
    return base::UsageError(absl::StrCat("--warmup-steps is ", rate.warmup_steps,
                                         ", but the run has ", steps, " steps in all"));
  }
  if (rate.has_minimum()) {
    rate.minimum = options.min_learning_rate.value_or(
        rate.kind == Kind::kOneCycle ? rate.peak / kOneCycleFall : 0.0F);
    if (rate.minimum > rate.peak) {
      return base::UsageError(absl::StrCat("--min-lr is ", rate.minimum,
                                           ", above the rate that the warm-up ends with, ",
                                           rate.peak));
    }
  } else if (options.min_learning_rate.has_value()) {
    return base::UsageError(absl::StrCat("--min-lr is for a rate that falls to it: --lr-schedule ",
                                         options.learning_rate_schedule, " has none"));
  }
  if (rate.kind == Kind::kStep) {
    rate.period = schedule.period.value_or(ShareOf(steps, kLevelShare));
    rate.factor = schedule.factor.value_or(rate.factor);
  }
  if (rate.kind == Kind::kWsd) {
    const int64_t after_warmup = std::max<int64_t>(1, steps - rate.warmup_steps);
    rate.period = schedule.period.value_or(std::min(after_warmup, ShareOf(steps, kDecayShare)));
    if (rate.period > after_warmup) {
      return base::UsageError(absl::StrCat(
          "--lr-schedule wsd decays for ", rate.period, " steps, but after ", rate.warmup_steps,
          " of warm-up the run has ", steps - rate.warmup_steps, " left"));
    }
    // A run that is all warm-up has nothing to decay in.
    if (rate.warmup_steps == steps) rate.kind = Kind::kConstant;
  }
  return rate;
}

}  // namespace stagecoach::engine
