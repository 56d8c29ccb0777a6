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
//   kFunction: the values of a user's function. A resumed run continues with the next step's
//   number; its checkpoint does not contain the function, so pass the same one. So must all
//   processes of a run.
struct LearningRate {
  enum class Kind : uint8_t { kConstant, kWarmupCosine, kFunction };
  Kind kind = Kind::kConstant;
  float peak = 1e-3F;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  float minimum = 0.0F;
  std::function<float(int64_t step)> function;  // kFunction reads nothing else

  LearningRate() = default;  // Constant(1e-3F)
  static LearningRate Constant(float value);
  static LearningRate WarmupCosine(float peak, int64_t warmup_steps, int64_t total_steps,
                                   float minimum = 0.0F);
  // A function of the step alone, with values in [0, infinity); called once before each step, by
  // the thread that calls Trainer::Step.
  static LearningRate Function(std::function<float(int64_t step)> function);

  // Returns the rate of a step, counted from 1. Depends on the arguments alone, so a run may resume
  // anywhere. For a function, InvalidArgument: it returns a negative number, NaN or infinity;
  // Internal: it throws.
  absl::StatusOr<float> At(int64_t step) const;
};

// InvalidArgument: a peak that is negative, NaN or infinite, negative steps, total_steps below
// warmup_steps, a minimum outside [0, peak], no function.
absl::Status CheckLearningRate(const LearningRate& rate);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_
