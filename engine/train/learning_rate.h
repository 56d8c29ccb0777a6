#ifndef STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_
#define STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace stagecoach::engine {

// The learning rate of each step. Regular value type.
//   kConstant: `peak` throughout.
//   kWarmupCosine: rises linearly from peak / warmup_steps at step 1 to `peak` at step
//   warmup_steps, then falls along half a cosine to `minimum` at step total_steps, and stays there
//   (Loshchilov & Hutter 2017, without restarts).
struct LearningRate {
  enum class Kind : uint8_t { kConstant, kWarmupCosine };
  Kind kind = Kind::kConstant;
  float peak = 1e-3F;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  float minimum = 0.0F;

  static LearningRate Constant(float value) { return {.peak = value}; }
  static LearningRate WarmupCosine(float peak, int64_t warmup_steps, int64_t total_steps,
                                   float minimum = 0.0F) {
    return {Kind::kWarmupCosine, peak, warmup_steps, total_steps, minimum};
  }

  // Steps count from 1. Depends on the arguments alone, so a run may resume anywhere.
  float At(int64_t step) const;
};

// InvalidArgument: a peak that is negative or not finite, negative steps, total_steps below
// warmup_steps, a minimum outside [0, peak].
absl::Status CheckLearningRate(const LearningRate& rate);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_
