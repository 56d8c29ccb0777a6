#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_PLANNED_RUNS_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_PLANNED_RUNS_H_

#include "engine/train/trainer.h"

namespace stagecoach::engine {

struct PlannedRuns {
  int planned = 0;      // models for which there was a plan
  int tightened = 0;    // plans within a budget
  int recomputing = 0;  // those with layers that repeat F
};

// Tests that the engine keeps what the planner promises: plans random models, first without and
// then within ever smaller budgets, trains one step of each plan under that budget, with the
// devices and exchange of `options`, and expects that the engine accepts it and uses exactly the
// predicted memory.
PlannedRuns ExpectPlansToRun(unsigned seed, int trials, TrainerOptions options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_PLANNED_RUNS_H_
