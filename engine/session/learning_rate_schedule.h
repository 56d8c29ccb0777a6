#ifndef STAGECOACH_ENGINE_SESSION_LEARNING_RATE_SCHEDULE_H_
#define STAGECOACH_ENGINE_SESSION_LEARNING_RATE_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/train/learning_rate.h"

namespace stagecoach::engine {

// A schedule of learning rates as --lr-schedule names it: "constant", "linear", "warmup-cosine",
// "step[:STEPS[:FACTOR]]", "one-cycle" or "wsd[:STEPS]".
struct LearningRateSchedule {
  LearningRate::Kind kind = LearningRate::Kind::kWarmupCosine;
  std::optional<int64_t> period;  // unset: a share of the run (LearningRateOf)
  std::optional<float> factor;
};

// InvalidArgument says what was expected.
absl::StatusOr<LearningRateSchedule> ParseLearningRateSchedule(const std::string& text);

// "cosine, constant, linear, ...", for help and errors.
std::string LearningRateScheduleNames();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_LEARNING_RATE_SCHEDULE_H_
