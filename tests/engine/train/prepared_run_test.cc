#include "engine/train/prepared_run.h"

#include <memory>
#include <string>
#include <utility>

#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/evaluate/evaluate_plan.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;

const PlanOptions kTwoDevices{.devices = 2, .micro_batches = 4, .micro_batch_rows = 3};

GivenPlan TwoStages() { return {.plan = EvenPlan(SmallModel(), 2, "1f1b", 4, 3)}; }

std::string HashAfterAStep(absl::StatusOr<std::unique_ptr<Trainer>> trainer) {
  const int64_t rows = (*trainer)->plan().batch_rows();
  EXPECT_OK((*trainer)->Step(*SmallData(rows), Rows(0, rows)));
  return (*trainer)->ParametersHash().value();
}

TEST(PrepareRun, MakesEachLayerOnceToAnalyseItAndTheTrainerOnceToTrainIt) {
  int made = 0;
  Model model{.input = Shape{kSmallFeatures},
              .layers = {Linear(8), [&made, linear = Linear(kSmallClasses)] {
                           ++made;
                           return linear();
                         }}};
  ASSERT_OK_AND_ASSIGN(PreparedRun run, PrepareRun(model, kTwoDevices));
  EXPECT_EQ(made, 1);
  ASSERT_OK(Trainer::Create(std::move(run), {}));
  EXPECT_EQ(made, 2);
}

// Returns the step time of the fastest plan that PrepareRun finds for four devices on N cores, and
// the least of those with a named schedule.
TEST(PrepareRun, OfAnyScheduleIsTheFastestForTheCores) {
  for (const double cores : {0.0, 1.0, 1.5, 2.0, 3.0}) {
    const auto step_ns = [&](const std::string& schedule) -> absl::StatusOr<double> {
      PlanOptions options = {.devices = 4,
                             .schedule = schedule,
                             .cores = cores,
                             .micro_batches = 4,
                             .micro_batch_rows = 3};
      ASSIGN_OR_RETURN(const PreparedRun run, PrepareRun(SmallModel(), options));
      ASSIGN_OR_RETURN(
          const partition::PlanEvaluation evaluation,
          EvaluatePlan(run.plan(), JoinProfiles("", {run.profile}), partition::UniformCluster(4)));
      return StepNsOnCores(evaluation, cores == 0 ? 4 : cores);
    };
    ASSERT_OK_AND_ASSIGN(const double fastest, step_ns(partition::kAnySchedule));
    int others = 0;
    for (const schedule::Generator& generator : schedule::Generators()) {
      const absl::StatusOr<double> other = step_ns(std::string(generator.name));
      if (!other.ok()) continue;  // not for this shape
      ++others;
      EXPECT_LE(fastest, *other) << generator.name << " on " << cores;
    }
    EXPECT_GE(others, 4);
  }
}

TEST(PrepareRun, OfTheSamePlanIsTheSameFoundOrGiven) {
  ASSERT_OK_AND_ASSIGN(const PreparedRun found, PrepareRun(SmallModel(), kTwoDevices));
  ASSERT_OK_AND_ASSIGN(const PreparedRun given,
                       PrepareRun(SmallModel(), GivenPlan{.plan = found.plan()}));
  EXPECT_EQ(given.compiled.lowered->training, found.compiled.lowered->training);
  EXPECT_EQ(given.compiled.lowered->evaluation, found.compiled.lowered->evaluation);
  EXPECT_EQ(PlanTable(given.compiled), PlanTable(found.compiled));
}

// The plan can no longer be lowered.
TEST(Trainer, PerformsThePreparedScheduleAndDoesNotLowerThePlanAgain) {
  ASSERT_OK_AND_ASSIGN(PreparedRun run, PrepareRun(SmallModel(), TwoStages()));
  const std::string expected = HashAfterAStep(Trainer::Create(run, {}));
  run.compiled.plan.schedule.actions[1].pop_back();
  ASSERT_THAT(CheckPerformable(run.plan()), StatusIs(absl::StatusCode::kFailedPrecondition));
  auto trainer = Trainer::Create(std::move(run), {});
  ASSERT_OK(trainer);
  EXPECT_EQ(HashAfterAStep(std::move(trainer)), expected);
}

TEST(Trainer, RefusesARunThatWasPreparedForSomethingElse) {
  ASSERT_OK_AND_ASSIGN(const PreparedRun run, PrepareRun(SmallModel(), TwoStages()));
  EXPECT_THAT(Trainer::Create(run, {.optimizer = Optimizer::Sgd()}),
              IsRefused("another optimizer"));
  EXPECT_THAT(Trainer::Create(run, {.device = {.threads = 2}}), IsRefused("other devices"));
  GivenPlan grouped = TwoStages();
  grouped.transfers = schedule::Transfers::kGrouped;
  ASSERT_OK_AND_ASSIGN(PreparedRun for_groups, PrepareRun(SmallModel(), grouped));
  EXPECT_THAT(Trainer::Create(std::move(for_groups), {}), IsRefused("another exchange"));
}

}  // namespace
}  // namespace stagecoach::engine
