#include "partition/search/receipt_of.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partition/search/make_plan.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

// Twelve equal layers, but for the fifth, which is slow forward.
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

TEST(ReceiptOf, CostsOfAStageAreTheSumsOverItsLayers) {
  const Plan plan = {.first_layer = {0, 4, 8},
                     .num_layers = 12,
                     .schedule = GeneratedSchedule("zb-h1", 2)(3).value()};
  ASSERT_OK_AND_ASSIGN(const Receipt receipt, ReceiptOf(plan, TwelveLayers(), UniformCluster(3)));
  const schedule::Costs& costs = receipt.costs;
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

}  // namespace
}  // namespace stagecoach::partition
