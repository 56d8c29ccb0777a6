#include "partition/stage_memory.h"

#include <vector>

#include "gtest/gtest.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;
using schedule::StageMemory;

constexpr StagePosition kMiddle = {};
constexpr StagePosition kMiddleSplit = {.splits_backward = true};

// A layer whose boundary tensors die in F and B, so that each test adds what it is about.
LayerCost Layer(int64_t input_bytes, int64_t output_bytes) {
  LayerCost layer;
  layer.memory.input_bytes = input_bytes;
  layer.memory.output_bytes = output_bytes;
  layer.memory.input_last_use = LastUse::kForward;
  return layer;
}

StageMemory Aggregate(const std::vector<LayerCost>& layers, const StagePosition& position,
                      const LossMemory& loss = {}) {
  return AggregateStage(MemoryOf(layers), loss, position);
}

TEST(AggregateStage, AddsWhatIsKeptForTheWholeRun) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.parameter_bytes = 128;
  layers[0].memory.optimizer_bytes = 256;
  layers[1].memory.parameter_bytes = 64;
  layers[1].memory.optimizer_bytes = 192;
  layers[0].memory.other_resident_bytes = 24;
  layers[1].memory.other_resident_bytes = 8;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.parameter_bytes, 192);
  EXPECT_EQ(stage.gradient_bytes, 192);
  EXPECT_EQ(stage.optimizer_bytes, 448);
  EXPECT_EQ(stage.other_resident_bytes, 32);
}

TEST(AggregateStage, AddsTheStashesOfLayers) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.stash_bytes = 64;
  layers[0].memory.weight_stash_bytes = 128;
  layers[0].memory.gradient_stash_bytes = 192;
  layers[1].memory.stash_bytes = 640;
  layers[1].memory.weight_stash_bytes = 1280;
  layers[1].memory.gradient_stash_bytes = 1920;
  const StageMemory stage = Aggregate(layers, kMiddleSplit);
  EXPECT_EQ(stage.stash_bytes, 704);
  EXPECT_EQ(stage.weight_stash_bytes, 1408);
  EXPECT_EQ(stage.gradient_stash_bytes, 2112);
  EXPECT_EQ(stage.workspace_bytes, 0);
}

TEST(AggregateStage, FusedBackwardHasTheLargestGradientStashInItsWorkspace) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.gradient_stash_bytes = 192;
  layers[1].memory.gradient_stash_bytes = 1920;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.gradient_stash_bytes, 0);
  EXPECT_EQ(stage.workspace_bytes, 1920);
}

TEST(AggregateStage, TakesInputAndOutputFromTheOuterLayers) {
  std::vector<LayerCost> layers = {Layer(100, 200), Layer(200, 300), Layer(300, 401)};
  layers[0].memory.input_last_use = LastUse::kBackwardInput;
  layers[2].memory.output_last_use = LastUse::kBackwardWeight;
  layers[2].memory.output_gradient_last_use = LastUse::kBackwardWeight;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.input_bytes, 100);
  EXPECT_EQ(stage.input_last_use, LastUse::kBackwardInput);
  EXPECT_EQ(stage.input_gradient_bytes, 100);
  EXPECT_EQ(stage.output_bytes, 401);
  EXPECT_EQ(stage.output_last_use, LastUse::kBackwardWeight);
  EXPECT_EQ(stage.output_gradient_bytes, 401);
  EXPECT_EQ(stage.output_gradient_last_use, LastUse::kBackwardWeight);
}

TEST(AggregateStage, FirstStageHasNoInputGradient) {
  EXPECT_EQ(Aggregate({Layer(100, 200)}, {.is_first = true}).input_gradient_bytes, 0);
}

TEST(AggregateStage, ActivationReadLastByForwardPassesThroughTheWorkspace) {
  const StageMemory stage = Aggregate({Layer(64, 100), Layer(100, 64)}, kMiddle);
  EXPECT_EQ(stage.workspace_bytes, 2 * 128);
  EXPECT_EQ(stage.stash_bytes, 0);
  EXPECT_EQ(stage.weight_stash_bytes, 0);
}

TEST(AggregateStage, ActivationReadByTheNextLayersBackwardIsStashed) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[1].memory.input_last_use = LastUse::kBackwardInput;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.stash_bytes, 128);
  EXPECT_EQ(stage.weight_stash_bytes, 0);
}

TEST(AggregateStage, ActivationReadByItsOwnLayersBackwardIsStashed) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.output_last_use = LastUse::kBackwardInput;
  EXPECT_EQ(Aggregate(layers, kMiddle).stash_bytes, 128);
}

TEST(AggregateStage, TheLaterOfTwoReadersDecidesWhereAnActivationIsKept) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.output_last_use = LastUse::kBackwardInput;
  layers[1].memory.input_last_use = LastUse::kBackwardWeight;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.stash_bytes, 0);
  EXPECT_EQ(stage.weight_stash_bytes, 128);
}

TEST(AggregateStage, GradientThatWReadsIsStashedWhereBackwardIsSplit) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.output_gradient_last_use = LastUse::kBackwardWeight;
  layers[1].memory.input_last_use = LastUse::kBackwardInput;
  const StageMemory stage = Aggregate(layers, kMiddleSplit);
  EXPECT_EQ(stage.gradient_stash_bytes, 128);
  EXPECT_EQ(stage.workspace_bytes, 0);
}

TEST(AggregateStage, GradientThatWReadsStaysInTheWorkspaceOfAFusedBackward) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.output_gradient_last_use = LastUse::kBackwardWeight;
  layers[1].memory.input_last_use = LastUse::kBackwardInput;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.gradient_stash_bytes, 0);
  EXPECT_EQ(stage.workspace_bytes, 2 * 128);
}

TEST(AggregateStage, GradientThatOnlyBReadsStaysInTheWorkspaceOfASplitBackward) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[1].memory.input_last_use = LastUse::kBackwardInput;
  const StageMemory stage = Aggregate(layers, kMiddleSplit);
  EXPECT_EQ(stage.gradient_stash_bytes, 0);
  EXPECT_EQ(stage.workspace_bytes, 2 * 128);
}

TEST(AggregateStage, SlotsAreAsLargeAsTheLargestInnerTensor) {
  const StageMemory stage =
      Aggregate({Layer(9999, 100), Layer(100, 300), Layer(300, 9999)}, kMiddle);
  EXPECT_EQ(stage.workspace_bytes, 2 * 320);
}

TEST(AggregateStage, ASingleLayerNeedsNoSlots) {
  EXPECT_EQ(Aggregate({Layer(100, 200)}, kMiddle).workspace_bytes, 0);
}

TEST(AggregateStage, WorkspaceHasTheLargestScratchOfAnyLayer) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.workspace_bytes = 130;
  layers[1].memory.workspace_bytes = 70;
  EXPECT_EQ(Aggregate(layers, kMiddle).workspace_bytes, 192);
}

TEST(AggregateStage, WorkspaceAddsSlotsScratchAndFusedGradients) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.workspace_bytes = 1024;
  layers[1].memory.gradient_stash_bytes = 64;
  EXPECT_EQ(Aggregate(layers, kMiddle).workspace_bytes, 2 * 128 + 1024 + 64);
}

TEST(AggregateStage, LossCountsOnTheLastStageOnly) {
  const LossMemory loss = {.workspace_bytes = 512, .resident_bytes = 8};
  const StageMemory last = Aggregate({Layer(64, 64)}, {.is_last = true}, loss);
  EXPECT_EQ(last.workspace_bytes, 512);
  EXPECT_EQ(last.other_resident_bytes, 8);
  const StageMemory middle = Aggregate({Layer(64, 64)}, kMiddle, loss);
  EXPECT_EQ(middle.workspace_bytes, 0);
  EXPECT_EQ(middle.other_resident_bytes, 0);
}

TEST(AggregateStage, LossSharesTheScratchOfTheLayers) {
  LayerCost layer = Layer(64, 64);
  layer.memory.workspace_bytes = 1024;
  EXPECT_EQ(Aggregate({layer}, {.is_last = true}, {.workspace_bytes = 512}).workspace_bytes, 1024);
}

}  // namespace
}  // namespace stagecoach::partition
