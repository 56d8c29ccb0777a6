#include "partition/search/best_cut.h"

#include <random>

#include "gtest/gtest.h"
#include "partition/search/balance_stages.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

// Too many layers for considering all cuts.
absl::StatusOr<CutEvaluator> LongChain(std::mt19937& random) {
  constexpr int kLayers = 60;
  Profile profile = {.model = "long",
                     .sizes = {{.micro_batch_rows = 1, .layers = RandomLayers(random, kLayers)}}};
  const Plan plan = {.num_layers = kLayers,
                     .micro_batch_rows = 1,
                     .schedule = GeneratedSchedule("zb-h1", 8)(6).value()};
  return CutEvaluator::Create(plan, TableOf(profile, 1, 8, plan.replication, {}),
                              UniformCluster(6));
}

TEST(FindBestCut, MovesBoundariesOnlyWhereItMayRefine) {
  std::mt19937 random(1);
  SearchBudget never;
  int improved = 0;
  for (int trial = 0; trial < 10; ++trial) {
    ASSERT_OK_AND_ASSIGN(CutEvaluator pipeline, LongChain(random));
    ASSERT_OK_AND_ASSIGN(const BestCut start, FindBestCut(pipeline, {.may_refine = false}, never));
    ASSERT_OK_AND_ASSIGN(const BestCut refined, FindBestCut(pipeline, {.may_refine = true}, never));
    EXPECT_LE(start.simulated, 2);  // those of CutSearch
    EXPECT_GT(refined.simulated, 2);
    EXPECT_FALSE(start.is_optimal);
    EXPECT_FALSE(start.is_final);
    EXPECT_LE(refined.objective_ns, start.objective_ns);
    improved += refined.objective_ns < start.objective_ns;
    ASSERT_OK_AND_ASSIGN(const int64_t step_ns, pipeline.StepNs(refined.cut));
    EXPECT_EQ(static_cast<double>(step_ns), refined.objective_ns);
  }
  EXPECT_GT(improved, 0);
}

}  // namespace
}  // namespace stagecoach::partition
