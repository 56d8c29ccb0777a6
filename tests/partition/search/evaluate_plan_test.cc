#include "partition/evaluate/evaluate_plan.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partition/search/balance_stages.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

// Returns twelve equal layers, except for the fifth, which is slow forward.
Profile TwelveLayers() {
  SizedLayers sized;
  for (int i = 0; i < 12; ++i) {
    LayerCost layer{.name = absl::StrCat("layer.", i), .parameters = 10};
    layer.forward_ns = layer.backward_input_ns = layer.backward_weight_ns = 1000;
    layer.step_ns = 100;
    layer.memory = {.parameter_bytes = 40, .input_bytes = 512, .output_bytes = 512};
    sized.layers.push_back(layer);
  }
  sized.layers[4].forward_ns = 5000;
  return {.model = "twelve", .sizes = {sized}, .updates_in_backward = true};
}

TEST(EvaluatePlan, CostsOfAStageAreTheSumsOverItsLayers) {
  const Plan plan = {.first_layer = {0, 4, 8},
                     .num_layers = 12,
                     .schedule = GeneratedSchedule("zb-h1", 2)(3).value()};
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation evaluation,
                       EvaluatePlan(plan, TwelveLayers(), UniformCluster(3)));
  const schedule::Costs& costs = evaluation.costs;
  ASSERT_EQ(costs.stages.size(), 3U);
  EXPECT_EQ(costs.stages[0].forward_ns, 4000);
  EXPECT_EQ(costs.stages[1].forward_ns, 8000);
  EXPECT_EQ(costs.stages[1].backward_ns, 8000);
  EXPECT_EQ(costs.stages[1].step_ns, 400);
  EXPECT_EQ(costs.stages[0].output_bytes, 512);
  EXPECT_EQ(costs.stages[0].input_gradient_bytes, 0);
  EXPECT_EQ(costs.stages[1].input_gradient_bytes, 512);
  EXPECT_TRUE(costs.updates_in_backward);
}

TEST(StepNsOnCores, SumsOfReplicasNeedCoresOfTheirOwn) {
  const Plan plan = {.first_layer = {0},
                     .num_layers = 12,
                     .schedule = GeneratedSchedule("1f1b", 2)(1).value(),
                     .replication = {.replicas = 2, .gradient_blocks = 2}};
  Cluster cluster = UniformCluster(2);
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation free, EvaluatePlan(plan, TwelveLayers(), cluster));
  // Two micro-batches per replica, and its update.
  constexpr double kPasses = 2 * (11 * 3000 + 7000) + 12 * 100;
  EXPECT_EQ(StepNsOnCores(free, 4), kPasses);
  EXPECT_EQ(StepNsOnCores(free, 2), kPasses);
  EXPECT_EQ(StepNsOnCores(free, 1), 2 * kPasses);

  cluster.within_host.bytes_per_second = 1e9;
  ASSERT_OK_AND_ASSIGN(const PlanEvaluation summing, EvaluatePlan(plan, TwelveLayers(), cluster));
  const auto sum_ns = static_cast<double>(summing.costs.stages[0].reduce_ns);
  EXPECT_EQ(sum_ns, 12 * 40);  // half of the gradients each way, at a byte per ns
  EXPECT_EQ(StepNsOnCores(summing, 4), static_cast<double>(summing.simulation.step_ns));
  EXPECT_EQ(StepNsOnCores(summing, 3), kPasses + sum_ns);
  EXPECT_EQ(StepNsOnCores(summing, 2), kPasses + sum_ns);
  EXPECT_EQ(StepNsOnCores(summing, 1), 2 * (kPasses + sum_ns));
}

}  // namespace
}  // namespace stagecoach::partition
