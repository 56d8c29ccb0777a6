#include "gtest/gtest.h"
#include "tests/engine/train/runs/planned_runs.h"

namespace stagecoach::engine {
namespace {

TEST(PlannedTraining, TakesExactlyThePredictedMemoryUnderARandomPlan) {
  const PlannedRuns runs = ExpectPlansToRun(/*seed=*/7, /*trials=*/25, {});
  EXPECT_GT(runs.planned, 12);
  EXPECT_GT(runs.tightened, 20);
  EXPECT_GT(runs.recomputing, 4);
}

}  // namespace
}  // namespace stagecoach::engine
