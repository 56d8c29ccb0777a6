#include "partition/plan/split_plan.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/cost/cluster.h"
#include "partition/search/balance_stages.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kPart = kLeastPartBytes;

std::vector<LayerCost> LayersOf(const std::vector<int64_t>& bytes) {
  std::vector<LayerCost> layers;
  for (const int64_t own : bytes) {
    LayerCost& layer = layers.emplace_back();
    layer.name = "layer" + std::to_string(layers.size());
    layer.forward_ns = 1e6;
    layer.backward_input_ns = layer.backward_weight_ns = 1e6;
    layer.memory = {.parameter_bytes = own, .input_bytes = 64, .output_bytes = 64};
  }
  return layers;
}

Plan TwoReplicas(int layers) {
  return {.first_layer = {0},
          .num_layers = layers,
          .schedule = schedule::OneFOneB({1, 2}).value(),
          .replication = {.replicas = 2, .gradient_blocks = 2}};
}

std::vector<int> FirstLayers(const std::vector<int64_t>& bytes) {
  const Plan plan = TwoReplicas(static_cast<int>(bytes.size()));
  const Plan split = SplitForReduction(plan, LayersOf(bytes));
  EXPECT_OK(CheckPlan(split));
  EXPECT_EQ(split.batch_rows(), plan.batch_rows());
  return split.first_layer;
}

TEST(SplitForReduction, GivesPartsAboutEqualGradients) {
  EXPECT_THAT(FirstLayers({kPart, kPart}), ElementsAre(0, 1));
  EXPECT_THAT(FirstLayers({kPart, 0, kPart - 1}), ElementsAre(0));  // too little for two
  EXPECT_THAT(FirstLayers({kPart, kPart, 0, 0, kPart}), ElementsAre(0, 1, 2));
  EXPECT_THAT(FirstLayers({3 * kPart, kPart}), ElementsAre(0, 1));
  EXPECT_THAT(FirstLayers(std::vector<int64_t>(16, kPart)), ElementsAre(0, 4, 8, 12));
  EXPECT_THAT(FirstLayers({9 * kPart}), ElementsAre(0));  // a layer is not divided
}

TEST(SplitForReduction, LeavesOneReplicaAsItIs) {
  Plan plan = TwoReplicas(2);
  plan.replication = {};
  EXPECT_EQ(SplitForReduction(plan, LayersOf({kPart, kPart})), plan);
}

// Four layers with the gradients of two parts, on two replicas whose link takes as long for each
// layer as its backward passes: all sums except the first part's are hidden.
TEST(SplitForReduction, HidesReductions) {
  PlannerRequest request;
  const std::vector<LayerCost> layers = LayersOf(std::vector<int64_t>(4, kPart));
  request.profile = {.sizes = {{.micro_batch_rows = 1, .layers = layers}}};
  request.cluster = UniformCluster(2);
  request.cluster.within_host = {.latency_ns = 0, .bytes_per_second = kPart * 1e3 / 2};
  request.batch_rows = 4;
  request.schedule = "1f1b";
  request.replicas = 2;
  const PlanEvaluation evaluation = FindPlan(request).value();
  EXPECT_THAT(evaluation.plan().first_layer, ElementsAre(0, 1, 2, 3));
  // Two micro-batches of 4 layers x 3 ms; the exchange of a layer takes 2 ms.
  EXPECT_EQ(evaluation.simulation.step_ns, 24'000'000 + 2'000'000);
}

TEST(SplitForReduction, IsWhatATrainedPlanHas) {
  const BalanceRequest request = {
      .layers = LayersOf({kPart, kPart}),
      .cluster = UniformCluster(2),
      .replication = {.replicas = 2, .gradient_blocks = 2},
      .schedule = GeneratedSchedule("1f1b", 2),
  };
  EXPECT_THAT(BalanceStages(request).value().plan.first_layer, ElementsAre(0, 1));
}

}  // namespace
}  // namespace stagecoach::partition
