#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_PLANNED_RUNS_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_PLANNED_RUNS_H_

#include "engine/train/trainer.h"

namespace stagecoach::engine {

struct PlannedRuns {
  int planned = 0;      // models for which there was a plan
  int tightened = 0;    // plans within a budget
  int recomputing = 0;  // of those, the ones with layers that do F again
};

// What the planner promises, kept by the engine: plans random models, first without and then within
// ever smaller budgets, trains each plan a step on devices and by an exchange as `options` has
// them, under that budget, and expects that the engine takes it and uses the memory that was
// predicted.
PlannedRuns ExpectPlansToRun(unsigned seed, int trials, TrainerOptions options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_PLANNED_RUNS_H_
