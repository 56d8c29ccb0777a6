#ifndef STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_
#define STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::engine {

// The learning rate of each step. Regular value type.
//   kConstant: `peak` throughout.
//   kWarmupCosine: rises linearly from peak / warmup_steps at step 1 to `peak` at step
//   warmup_steps, then falls along half a cosine to `minimum` at step total_steps, and stays there
//   (Loshchilov & Hutter 2017, without restarts).
//   kFunction: what a function of yours says. A run that is resumed goes on with the next step's
//   number; its checkpoint does not have the function, so give it the same one. So must all
//   processes of a run.
struct LearningRate {
  enum class Kind : uint8_t { kConstant, kWarmupCosine, kFunction };
  Kind kind = Kind::kConstant;
  float peak = 1e-3F;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  float minimum = 0.0F;
  std::function<float(int64_t step)> function;  // of kFunction, which reads nothing else

  LearningRate() = default;  // Constant(1e-3F)
  static LearningRate Constant(float value);
  static LearningRate WarmupCosine(float peak, int64_t warmup_steps, int64_t total_steps,
                                   float minimum = 0.0F);
  // Of the step alone, in [0, infinity); called once before each step, by the thread that calls
  // Trainer::Step.
  static LearningRate Function(std::function<float(int64_t step)> function);

  // Steps count from 1. Depends on the arguments alone, so a run may resume anywhere. Of a
  // function, InvalidArgument: it gives a negative number or none that is finite; Internal: it
  // throws.
  absl::StatusOr<float> At(int64_t step) const;
};

// InvalidArgument: a peak that is negative or not finite, negative steps, total_steps below
// warmup_steps, a minimum outside [0, peak], no function.
absl::Status CheckLearningRate(const LearningRate& rate);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_
