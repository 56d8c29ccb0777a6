#include "partition/cost/stage_memory.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "tests/partition/random_layers.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;
using schedule::StageMemory;

constexpr StagePosition kMiddle = {};
constexpr StagePosition kMiddleSplit = {.splits_backward = true};

// Returns a layer whose boundary tensors die in F and B, so that each test adds what it covers.
LayerCost Layer(int64_t input_bytes, int64_t output_bytes) {
  LayerCost layer;
  layer.memory.input_bytes = input_bytes;
  layer.memory.output_bytes = output_bytes;
  layer.memory.input_last_use = LastUse::kForward;
  return layer;
}

StageMemory Aggregate(const std::vector<LayerCost>& layers, const StagePosition& position,
                      const EndMemory& ends = {}) {
  return LayOutStage(MemoryOf(layers), ends, position);
}

TEST(LayOutStage, AddsWhatIsKeptForTheWholeRun) {
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

// Two of the first layer's parameters are averages, which layers read as they are.
TEST(LayOutStage, KeepsOfParametersWhatLayersReadWhereNothingIsTrained) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.parameter_bytes = 1024 + 128;
  layers[0].memory.averaged_bytes = 128;
  layers[0].memory.working_bytes = 512;
  layers[0].memory.frozen_bytes = 16;
  layers[0].memory.other_resident_bytes = 512 + 24;
  layers[1].memory.parameter_bytes = 64;
  layers[1].memory.frozen_bytes = layers[1].memory.other_resident_bytes = 8;
  StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.parameter_bytes, 1024 + 128 + 64);
  EXPECT_EQ(stage.other_resident_bytes, 512 + 24 + 8);
  EXPECT_EQ(stage.frozen_bytes, 16 + 8);
  stage = Aggregate(layers, {.trains = false});
  EXPECT_EQ(stage.parameter_bytes, 512 + 128 + 64);
  EXPECT_EQ(stage.other_resident_bytes, 24 + 8);
  EXPECT_EQ(stage.frozen_bytes, 16 + 8);
  EXPECT_EQ(stage.gradient_bytes + stage.optimizer_bytes, 0);
}

// The first layer reads rounded copies of all parameters but averages; the second has no copies.
TEST(LayOutStage, HasInTheHostsMemoryWhatOnlyUpdatesRead) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.parameter_bytes = 4096 + 512;
  layers[0].memory.averaged_bytes = 512;
  layers[0].memory.optimizer_bytes = 8192;
  layers[0].memory.working_bytes = layers[0].memory.other_resident_bytes = 2048;
  layers[1].memory.parameter_bytes = 1024;
  layers[1].memory.optimizer_bytes = 2048;
  const auto lay_out = [&](const Replication& replication, bool trains = true) {
    return LayOutStage(MemoryOf(layers), {}, {.trains = trains, .replication = replication});
  };
  const StageMemory kept = lay_out({2, 2});
  StageMemory stage = lay_out({.replicas = 2, .gradient_blocks = 2, .offloads_optimizer = true});
  EXPECT_EQ(stage.parameter_bytes, 512 + 1024);
  EXPECT_EQ(stage.optimizer_bytes, 0);
  EXPECT_EQ(stage.host_resident_bytes, 4096 + 8192 + 2048);
  EXPECT_EQ(stage.gradient_bytes, kept.gradient_bytes);
  EXPECT_EQ(stage.reduction_bytes, kept.reduction_bytes);
  EXPECT_EQ(stage.other_resident_bytes, kept.other_resident_bytes);
  // Replicas exchange values from the devices' memory.
  Replication sharded = {.replicas = 2, .gradient_blocks = 2, .shards_optimizer = true};
  const int64_t shard_bytes = lay_out(sharded).optimizer_bytes;
  sharded.offloads_optimizer = true;
  stage = lay_out(sharded);
  EXPECT_EQ(stage.parameter_bytes, kept.parameter_bytes);
  EXPECT_EQ(stage.optimizer_bytes, 0);
  EXPECT_EQ(stage.host_resident_bytes, shard_bytes);
  EXPECT_EQ(lay_out({.offloads_optimizer = true}, /*trains=*/false), lay_out({}, false));
}

TEST(LayOutStage, HasASumOfGradientsForEachSubtreeAndRoomToReceiveThoseOfOthers) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.parameter_bytes = 3072;
  layers[1].memory.parameter_bytes = 1024;
  const auto lay_out = [&](const Replication& replication) {
    return LayOutStage(MemoryOf(layers), {}, {.replication = replication});
  };
  EXPECT_EQ(lay_out({1, 1}).gradient_bytes, 4096);
  EXPECT_EQ(lay_out({1, 1}).reduction_bytes, 0);
  EXPECT_EQ(lay_out({1, 4}).gradient_bytes, 3 * 4096);
  EXPECT_EQ(lay_out({1, 4}).reduction_bytes, 0);
  EXPECT_EQ(lay_out({2, 4}).gradient_bytes, 2 * 4096);
  EXPECT_EQ(lay_out({2, 4}).reduction_bytes, 2048);
  EXPECT_EQ(lay_out({4, 4}).gradient_bytes, 4096);
  EXPECT_EQ(lay_out({4, 4}).reduction_bytes, 3 * 1024);
}

TEST(LayOutStage, AddsTheStashesOfLayers) {
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

TEST(LayOutStage, FusedBackwardHasTheLargestGradientStashInItsWorkspace) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.gradient_stash_bytes = 192;
  layers[1].memory.gradient_stash_bytes = 1920;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.gradient_stash_bytes, 0);
  EXPECT_EQ(stage.workspace_bytes, 1920);
}

// Stashes and activations take the memory of one layer at a time; there are no gradients.
TEST(LayOutStage, KeepsNothingPastAForwardPassThatNothingFollows) {
  std::vector<LayerCost> layers = {Layer(64, 128), Layer(128, 192), Layer(192, 320)};
  for (LayerCost& layer : layers) {
    layer.memory.parameter_bytes = 64;
    layer.memory.optimizer_bytes = 128;
    layer.memory.gradient_stash_bytes = 640;
    layer.memory.input_last_use = LastUse::kBackwardWeight;
    layer.memory.output_last_use = LastUse::kBackwardInput;
  }
  layers[0].memory.stash_bytes = 256;
  layers[1].memory.stash_bytes = 192;
  layers[1].memory.weight_stash_bytes = 64;
  layers[2].memory.weight_stash_bytes = 384;
  for (const bool splits_backward : {false, true}) {
    StageMemory expected;
    expected.parameter_bytes = 3 * 64;
    expected.workspace_bytes = 2 * 192;
    expected.input_bytes = 64;
    expected.input_last_use = LastUse::kForward;
    expected.output_bytes = 320;
    expected.stash_bytes = 256;
    expected.weight_stash_bytes = 384;
    std::vector<LayerPlaces> places;
    EXPECT_TRUE(LayOutStage(MemoryOf(layers), {},
                            {.splits_backward = splits_backward,
                             .trains = false,
                             .replication = {2, 2, /*shards_optimizer=*/true}},
                            &places) == expected);
    for (const LayerPlaces& own : places) {
      EXPECT_EQ(own.stash.offset, 0);
      EXPECT_EQ(own.weight_stash.offset, 0);
    }
    EXPECT_NE(places[0].output, places[1].output);
  }
}

TEST(LayOutStagesFrom, GivesWhatLayOutStageDoes) {
  std::mt19937 random(5);
  const EndMemory ends = {.feed_resident_bytes = 640,
                          .loss_workspace_bytes = 3000,
                          .loss_resident_bytes = 320,
                          .stage_resident_bytes = 192};
  for (int round = 0; round < 200; ++round) {
    const std::vector<LayerMemory> layers = MemoryOf(RandomLayers(random, 1 + random() % 6));
    const StagePosition position = {
        .is_first = random() % 2 == 0,
        .is_last = random() % 2 == 0,
        .splits_backward = random() % 2 == 0,
        .trains = random() % 4 != 0,
        .replication = {2, random() % 2 == 0 ? 4 : 6, random() % 2 == 0}};
    const std::vector<StageMemory> stages = LayOutStagesFrom(layers, ends, position);
    ASSERT_EQ(stages.size(), layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto first_layers = absl::MakeConstSpan(layers).first(i + 1);
      ASSERT_TRUE(stages[i] == LayOutStage(first_layers, ends, position));
    }
  }
}

TEST(LayOutStage, TakesInputAndOutputFromTheOuterLayers) {
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

TEST(LayOutStage, FirstStageHasNoInputGradient) {
  EXPECT_EQ(Aggregate({Layer(100, 200)}, {.is_first = true}).input_gradient_bytes, 0);
}

TEST(LayOutStage, ActivationReadLastByForwardPassesThroughTheWorkspace) {
  const StageMemory stage = Aggregate({Layer(64, 100), Layer(100, 64)}, kMiddle);
  EXPECT_EQ(stage.workspace_bytes, 2 * 128);
  EXPECT_EQ(stage.stash_bytes, 0);
  EXPECT_EQ(stage.weight_stash_bytes, 0);
}

TEST(LayOutStage, ActivationReadByTheNextLayersBackwardIsStashed) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[1].memory.input_last_use = LastUse::kBackwardInput;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.stash_bytes, 128);
  EXPECT_EQ(stage.weight_stash_bytes, 0);
}

TEST(LayOutStage, ActivationReadByItsOwnLayersBackwardIsStashed) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.output_last_use = LastUse::kBackwardInput;
  EXPECT_EQ(Aggregate(layers, kMiddle).stash_bytes, 128);
}

TEST(LayOutStage, TheLaterOfTwoReadersDecidesWhereAnActivationIsKept) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.output_last_use = LastUse::kBackwardInput;
  layers[1].memory.input_last_use = LastUse::kBackwardWeight;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.stash_bytes, 0);
  EXPECT_EQ(stage.weight_stash_bytes, 128);
}

TEST(LayOutStage, GradientThatWReadsIsStashedWhereBackwardIsSplit) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.output_gradient_last_use = LastUse::kBackwardWeight;
  layers[1].memory.input_last_use = LastUse::kBackwardInput;
  const StageMemory stage = Aggregate(layers, kMiddleSplit);
  EXPECT_EQ(stage.gradient_stash_bytes, 128);
  EXPECT_EQ(stage.workspace_bytes, 0);
}

TEST(LayOutStage, GradientThatWReadsStaysInTheWorkspaceOfAFusedBackward) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.output_gradient_last_use = LastUse::kBackwardWeight;
  layers[1].memory.input_last_use = LastUse::kBackwardInput;
  const StageMemory stage = Aggregate(layers, kMiddle);
  EXPECT_EQ(stage.gradient_stash_bytes, 0);
  EXPECT_EQ(stage.workspace_bytes, 2 * 128);
}

TEST(LayOutStage, GradientThatOnlyBReadsStaysInTheWorkspaceOfASplitBackward) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[1].memory.input_last_use = LastUse::kBackwardInput;
  const StageMemory stage = Aggregate(layers, kMiddleSplit);
  EXPECT_EQ(stage.gradient_stash_bytes, 0);
  EXPECT_EQ(stage.workspace_bytes, 2 * 128);
}

TEST(LayOutStage, SlotsAreAsLargeAsTheLargestInnerTensor) {
  const StageMemory stage =
      Aggregate({Layer(9999, 100), Layer(100, 300), Layer(300, 9999)}, kMiddle);
  EXPECT_EQ(stage.workspace_bytes, 2 * 320);
}

TEST(LayOutStage, ASingleLayerNeedsNoSlots) {
  EXPECT_EQ(Aggregate({Layer(100, 200)}, kMiddle).workspace_bytes, 0);
}

TEST(LayOutStage, WorkspaceHasTheLargestScratchOfAnyLayer) {
  std::vector<LayerCost> layers(2);
  layers[0].memory.workspace_bytes = 130;
  layers[1].memory.workspace_bytes = 70;
  EXPECT_EQ(Aggregate(layers, kMiddle).workspace_bytes, 192);
}

TEST(LayOutStage, WorkspaceAddsSlotsScratchAndFusedGradients) {
  std::vector<LayerCost> layers = {Layer(64, 100), Layer(100, 64)};
  layers[0].memory.workspace_bytes = 1024;
  layers[1].memory.gradient_stash_bytes = 64;
  EXPECT_EQ(Aggregate(layers, kMiddle).workspace_bytes, 2 * 128 + 1024 + 64);
}

TEST(LayOutStage, FeedCountsOnTheFirstStageOnly) {
  const EndMemory ends = {.feed_resident_bytes = 24};
  EXPECT_EQ(Aggregate({Layer(64, 64)}, {.is_first = true}, ends).other_resident_bytes, 24);
  EXPECT_EQ(Aggregate({Layer(64, 64)}, kMiddle, ends).other_resident_bytes, 0);
  EXPECT_EQ(Aggregate({Layer(64, 64)}, {.is_last = true}, ends).other_resident_bytes, 0);
}

TEST(LayOutStage, WhatEveryStageIsToldCountsOnEach) {
  const EndMemory ends = {
      .feed_resident_bytes = 24, .loss_resident_bytes = 8, .stage_resident_bytes = 100};
  EXPECT_EQ(Aggregate({Layer(64, 64)}, {.is_first = true}, ends).other_resident_bytes, 124);
  EXPECT_EQ(Aggregate({Layer(64, 64), Layer(64, 64)}, kMiddle, ends).other_resident_bytes, 100);
  EXPECT_EQ(Aggregate({Layer(64, 64)}, {.is_last = true}, ends).other_resident_bytes, 108);
}

TEST(LayOutStage, LossCountsOnTheLastStageOnly) {
  const EndMemory ends = {.loss_workspace_bytes = 512, .loss_resident_bytes = 8};
  const StageMemory last = Aggregate({Layer(64, 64)}, {.is_last = true}, ends);
  EXPECT_EQ(last.workspace_bytes, 512);
  EXPECT_EQ(last.other_resident_bytes, 8);
  const StageMemory middle = Aggregate({Layer(64, 64)}, kMiddle, ends);
  EXPECT_EQ(middle.workspace_bytes, 0);
  EXPECT_EQ(middle.other_resident_bytes, 0);
}

TEST(LayOutStage, LossSharesTheScratchOfTheLayers) {
  LayerCost layer = Layer(64, 64);
  layer.memory.workspace_bytes = 1024;
  EXPECT_EQ(Aggregate({layer}, {.is_last = true}, {.loss_workspace_bytes = 512}).workspace_bytes,
            1024);
}

// An exclusive part of an area.
struct Part {
  int64_t begin = 0, end = 0;

  friend auto operator<=>(const Part&, const Part&) = default;
};

// Expects that the parts in use at the same time are adjacent, from the front of the area to its
// end.
void ExpectFilled(std::vector<Part> parts, int64_t area_bytes) {
  std::sort(parts.begin(), parts.end());
  int64_t end = 0;
  for (const Part& part : parts) {
    EXPECT_EQ(part.begin, end);
    end = part.end;
  }
  EXPECT_EQ(end, area_bytes);
}

class Places : public ::testing::TestWithParam<bool> {
 protected:
  // Adds the `bytes` at `place` to the parts of that area.
  void Add(const Place& place, int64_t bytes) {
    parts_[static_cast<size_t>(place.area)].push_back({place.offset, place.offset + bytes});
  }
  const std::vector<Part>& PartsOf(Place::Area area) const {
    return parts_[static_cast<size_t>(area)];
  }

  std::array<std::vector<Part>, 4> parts_;
};

TEST_P(Places, OfWhatIsKeptFillTheStashes) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const std::vector<LayerMemory> layers = MemoryOf(RandomLayers(random, 1 + random() % 6));
    const StagePosition position = {.splits_backward = GetParam()};
    std::vector<LayerPlaces> places;
    const StageMemory stage = LayOutStage(layers, {}, position, &places);
    EXPECT_EQ(stage, LayOutStage(layers, {}, position)) << "sizes do not depend on who asks";
    ASSERT_EQ(places.size(), layers.size());
    for (std::vector<Part>& parts : parts_) parts.clear();
    for (size_t i = 0; i < layers.size(); ++i) {
      Add(places[i].stash, layers[i].stash_bytes);
      Add(places[i].weight_stash, layers[i].weight_stash_bytes);
      Add(places[i].gradient_stash, layers[i].gradient_stash_bytes);
      if (i + 1 == layers.size()) break;
      Add(places[i].output, AlignTensor(layers[i].output_bytes));
      Add(places[i].output_gradient, AlignTensor(layers[i].output_bytes));
    }
    ExpectFilled(PartsOf(Place::Area::kStash), stage.stash_bytes);
    ExpectFilled(PartsOf(Place::Area::kWeightStash), stage.weight_stash_bytes);
    ExpectFilled(PartsOf(Place::Area::kGradientStash), stage.gradient_stash_bytes);
  }
}

// One operation of layer i may use at once its x and y, or its dx and dy, its scratch and, if
// fused, its gradient stash.
TEST_P(Places, OfOneOperationInTheWorkspaceAreApart) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const std::vector<LayerMemory> layers = MemoryOf(RandomLayers(random, 2 + random() % 5));
    std::vector<LayerPlaces> places;
    const StageMemory stage = LayOutStage(layers, {}, {.splits_backward = GetParam()}, &places);
    for (size_t i = 0; i < layers.size(); ++i) {
      for (Place LayerPlaces::*tensor : {&LayerPlaces::output, &LayerPlaces::output_gradient}) {
        parts_[3].clear();
        if (i > 0) Add(places[i - 1].*tensor, layers[i - 1].output_bytes);
        if (i + 1 < layers.size()) Add(places[i].*tensor, layers[i].output_bytes);
        Add(places[i].workspace, layers[i].workspace_bytes);
        Add(places[i].gradient_stash, layers[i].gradient_stash_bytes);
        std::vector<Part> parts = PartsOf(Place::Area::kWorkspace);
        std::sort(parts.begin(), parts.end());
        for (size_t j = 1; j < parts.size(); ++j) EXPECT_LE(parts[j - 1].end, parts[j].begin);
        EXPECT_LE(parts.back().end, stage.workspace_bytes);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(FusedAndSplit, Places, ::testing::Bool());

}  // namespace
}  // namespace stagecoach::partition
