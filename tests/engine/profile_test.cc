#include "engine/profile.h"

#include <cstdint>
#include <vector>

#include "engine/layers/layer_norm.h"
#include "engine/layers/linear.h"
#include "engine/layers/residual.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The cost of the only layer of a model with 10 features, for micro-batches of 3 rows.
partition::LayerCost CostOfLayer(const LayerFactory& layer,
                                 const Optimizer& optimizer = Optimizer::AdamW()) {
  return AnalyzeModel({.input = Shape{10}, .layers = {layer}},
                      {.micro_batch_rows = 3, .micro_batches = 5, .optimizer = optimizer})
      .value()
      .layers.at(0);
}

TEST(AnalyzeModel, SizesALinearLayer) {
  const partition::LayerCost cost = CostOfLayer(Linear(7));
  EXPECT_EQ(cost.name, "linear 10 -> 7");
  EXPECT_EQ(cost.parameters, 77);
  // 280 bytes of weights take 320, 28 of biases 64; two states of each; two norms.
  EXPECT_EQ(cost.memory.parameter_bytes, 384);
  EXPECT_EQ(cost.memory.optimizer_bytes, 768);
  EXPECT_EQ(cost.memory.other_resident_bytes, 64);
  EXPECT_EQ(cost.memory.input_bytes, 120);
  EXPECT_EQ(cost.memory.output_bytes, 84);
  EXPECT_EQ(cost.memory.stash_bytes, 0);
  EXPECT_EQ(cost.memory.weight_stash_bytes, 0);
  EXPECT_EQ(cost.memory.gradient_stash_bytes, 0);
  EXPECT_EQ(cost.memory.input_last_use, LastUse::kBackwardWeight);
  EXPECT_EQ(cost.memory.output_last_use, LastUse::kForward);
  EXPECT_EQ(cost.memory.output_gradient_last_use, LastUse::kBackwardWeight);
}

TEST(AnalyzeModel, CountsOneStateForSgd) {
  EXPECT_EQ(CostOfLayer(Linear(7), Optimizer::Sgd()).memory.optimizer_bytes, 384);
}

TEST(AnalyzeModel, StashesTheInputOfGelu) {
  const partition::LayerCost cost = CostOfLayer(Linear(7, Activation::kGelu));
  EXPECT_EQ(cost.name, "linear 10 -> 7, gelu");
  EXPECT_EQ(cost.memory.weight_stash_bytes, 128);
  EXPECT_EQ(cost.memory.output_gradient_last_use, LastUse::kBackwardInput);
}

TEST(AnalyzeModel, KeepsTheOutputOfRelu) {
  const partition::LayerCost cost = CostOfLayer(Linear(7, Activation::kRelu));
  EXPECT_EQ(cost.memory.weight_stash_bytes, 0);
  EXPECT_EQ(cost.memory.gradient_stash_bytes, 128);
  EXPECT_EQ(cost.memory.output_last_use, LastUse::kBackwardInput);
}

TEST(AnalyzeModel, SizesALayerNorm) {
  const partition::LayerCost cost = CostOfLayer(LayerNorm());
  EXPECT_EQ(cost.parameters, 20);
  EXPECT_EQ(cost.memory.parameter_bytes, 128);
  EXPECT_EQ(cost.memory.weight_stash_bytes, 64);  // mean and rstd of 3 rows
  EXPECT_EQ(cost.memory.output_bytes, 120);
}

TEST(AnalyzeModel, SizesAResidualLayerByItsInnerLayers) {
  const partition::LayerCost cost =
      CostOfLayer(Residual({LayerNorm(), Linear(10, Activation::kGelu)}));
  EXPECT_EQ(cost.parameters, 20 + 110);
  EXPECT_EQ(cost.memory.parameter_bytes, 128 + (448 + 64));
  // The statistics, what lies between the two layers, and the input of GELU.
  EXPECT_EQ(cost.memory.weight_stash_bytes, 64 + 128 + 128);
}

TEST(AnalyzeModel, SizesTheLoss) {
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile,
                       AnalyzeModel({.input = Shape{10}, .layers = {Linear(7)}},
                                    {.micro_batch_rows = 17, .micro_batches = 5}));
  EXPECT_EQ(profile.loss.workspace_bytes, 128);  // 17 labels
  EXPECT_EQ(profile.loss.resident_bytes, 128);   // 5 pairs of doubles
}

TEST(AnalyzeModel, FollowsTheShapesThroughTheModel) {
  ASSERT_OK_AND_ASSIGN(
      const ModelProfile profile,
      AnalyzeModel({.input = Shape{2, 5}, .layers = {LayerNorm(), Linear(7), Linear(3)}}, {}));
  EXPECT_THAT(profile.inputs, ElementsAre(Shape{2, 5}, Shape{2, 5}, Shape{7}));
  EXPECT_EQ(profile.output, Shape{3});
  EXPECT_THAT(profile.parameter_tensors, ElementsAre(2, 2, 2));
  EXPECT_EQ(profile.parameters(), 20 + 77 + 24);
}

TEST(AnalyzeModel, NamesTheLayerThatDoesNotFit) {
  EXPECT_THAT(AnalyzeModel({.input = Shape{10}, .layers = {Linear(7), Residual({Linear(8)})}}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer 1: residual")));
}

void ExpectPositiveTimes(const ModelProfile& profile) {
  for (size_t i = 0; i < profile.layers.size(); ++i) {
    const partition::LayerCost& layer = profile.layers[i];
    EXPECT_GT(layer.forward_ns, 0.0) << layer.name;
    EXPECT_GT(layer.backward_input_ns, 0.0) << layer.name;
    EXPECT_GT(layer.backward_weight_ns, 0.0) << layer.name;
    EXPECT_GT(layer.step_ns, 0.0) << layer.name;
  }
}

TEST(AnalyzeModel, EstimatesATimeForEveryOperation) {
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile,
                       AnalyzeModel(SmallModel(), {.micro_batch_rows = 4}));
  ExpectPositiveTimes(profile);
}

TEST(MeasureModel, MeasuresATimeForEveryOperation) {
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile,
                       MeasureModel(SmallModel(), {.micro_batch_rows = 4}, /*repeats=*/2));
  ExpectPositiveTimes(profile);
}

TEST(MeasureModel, SizesAsTheAnalysisDoes) {
  const ProfileOptions options{.micro_batch_rows = 4, .threads = 2};
  ASSERT_OK_AND_ASSIGN(const ModelProfile analyzed, AnalyzeModel(SmallModel(), options));
  ASSERT_OK_AND_ASSIGN(const ModelProfile measured,
                       MeasureModel(SmallModel(), options, /*repeats=*/1));
  ASSERT_EQ(measured.layers.size(), analyzed.layers.size());
  for (size_t i = 0; i < analyzed.layers.size(); ++i) {
    EXPECT_EQ(measured.layers[i].memory, analyzed.layers[i].memory);
  }
}

}  // namespace
}  // namespace stagecoach::engine
