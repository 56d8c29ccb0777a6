#include "partition/search/heuristics.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/search/balance_stages.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;

Profile SixLayers() {
  SizedLayers sized = {.micro_batch_rows = 1, .layers = {}};
  for (int i = 0; i < 6; ++i) {
    sized.layers.push_back({.name = "layer." + std::to_string(i),
                            .parameters = i < 2 ? 100 : 1,
                            .forward_ns = 1.0,
                            .flops = i > 3 ? 100.0 : 1.0});
  }
  return {.model = "six", .sizes = {sized}, .edges = {}};
}

Plan PlanOver(int stages) {
  Plan plan;
  plan.num_layers = 6;
  for (int stage = 0; stage < stages; ++stage) plan.first_layer.push_back(stage);
  plan.schedule = GeneratedSchedule("1f1b", 4)(stages).value();
  plan.recomputed = {1};
  return plan;
}

TEST(CutByHeuristic, UniformGivesTheFirstStagesOneLayerMore) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, CutByHeuristic("uniform", PlanOver(4), SixLayers()));
  EXPECT_THAT(plan.first_layer, ElementsAre(0, 2, 4, 5));
  EXPECT_TRUE(plan.recomputed.empty());
  EXPECT_EQ(plan.schedule, PlanOver(4).schedule);
}

TEST(CutByHeuristic, ParametersAndFlopsBalanceWhatTheySay) {
  ASSERT_OK_AND_ASSIGN(const Plan parameters,
                       CutByHeuristic("parameters", PlanOver(3), SixLayers()));
  EXPECT_THAT(parameters.first_layer, ElementsAre(0, 1, 2));
  ASSERT_OK_AND_ASSIGN(const Plan flops, CutByHeuristic("flops", PlanOver(3), SixLayers()));
  EXPECT_THAT(flops.first_layer, ElementsAre(0, 4, 5));
}

TEST(CutByHeuristic, RefusesUnknownNamesAndProfilesWithoutTheNumbers) {
  EXPECT_THAT(CutByHeuristic("parameter", PlanOver(3), SixLayers()),
              IsRefused("did you mean parameters?"));
  Profile profile = SixLayers();
  for (LayerCost& layer : profile.sizes[0].layers) layer.flops = 0;
  EXPECT_THAT(CutByHeuristic("flops", PlanOver(3), profile), IsRefused("for any layer"));
}

}  // namespace
}  // namespace stagecoach::partition
