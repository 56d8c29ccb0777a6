#ifndef STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_
#define STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::engine {

// The learning rate of each step. Regular value type. All but kFunction first rise linearly from
// peak / warmup_steps at step 1 to `peak` at step warmup_steps, and then
//   kConstant       stay at `peak`,
//   kWarmupCosine   fall along half a cosine (Loshchilov & Hutter 2017, without restarts),
//   kLinear         fall along a line,
//   kStep           are multiplied by `factor` after every `period` steps,
//   kOneCycle       fall along half a cosine, and have also risen along one, from peak / 25
//                   (Smith & Topin 2018),
//   kWsd            stay at `peak` up to the last `period` steps, in which they fall along a line
//                   (warm-up, stable, decay: Hu et al. 2024).
// What falls along a line or a cosine is `minimum` at step total_steps, and stays there.
//   kFunction: the values of a user's function. A resumed run continues with the next step's
//   number; its checkpoint does not contain the function, so pass the same one. So must all
//   processes of a run.
struct LearningRate {
  enum class Kind : uint8_t {
    kConstant,
    kWarmupCosine,
    kFunction,
    kLinear,
    kStep,
    kOneCycle,
    kWsd
  };
  Kind kind = Kind::kConstant;
  float peak = 1e-3F;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  float minimum = 0.0F;
  int64_t period = 1;                           // of kStep and kWsd
  float factor = 0.1F;                          // of kStep
  std::function<float(int64_t step)> function;  // kFunction reads nothing else

  LearningRate() = default;  // Constant(1e-3F)
  static LearningRate Constant(float value);
  static LearningRate WarmupCosine(float peak, int64_t warmup_steps, int64_t total_steps,
                                   float minimum = 0.0F);
  // A function of the step alone, with values in [0, infinity); called once before each step, by
  // the thread that calls Trainer::Step.
  static LearningRate Function(std::function<float(int64_t step)> function);

  // Returns whether the rate falls to `minimum`.
  bool has_minimum() const;

  // Returns the rate of a step, counted from 1. Depends on the arguments alone, so a run may resume
  // anywhere. For a function, InvalidArgument: it returns a negative number, NaN or infinity;
  // Internal: it throws.
  absl::StatusOr<float> At(int64_t step) const;
};

// InvalidArgument: a peak that is negative, NaN or infinite, negative steps, total_steps below
// warmup_steps (which only matters where it falls to a minimum), a minimum outside [0, peak], a
// period below 1 or, of kWsd, above the steps after the warm-up, a factor outside [0, 1], no
// function.
absl::Status CheckLearningRate(const LearningRate& rate);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_LEARNING_RATE_H_
