#include "gtest/gtest.h"
#include "tests/engine/train/planned_runs.h"

namespace stagecoach::engine {
namespace {

TEST(PlannedTraining, TakesExactlyThePredictedMemoryUnderARandomPlan) {
  const PlannedRuns runs = ExpectPlansToRun(/*seed=*/7, /*trials=*/60, {});
  EXPECT_GT(runs.planned, 30);
  EXPECT_GT(runs.tightened, 50);
  EXPECT_GT(runs.recomputing, 10);
}

}  // namespace
}  // namespace stagecoach::engine
