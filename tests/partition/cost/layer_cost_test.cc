#include "partition/cost/layer_cost.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LayerCost, StepCountsOncePerBatch) {
  const LayerCost layer = {
      .forward_ns = 1, .backward_input_ns = 2, .backward_weight_ns = 3, .step_ns = 10};
  EXPECT_EQ(layer.batch_ns(4), 4 * (1 + 2 + 3) + 10);
}

TEST(LayerCost, AWholeBackwardPassDoesSharedWorkOnce) {
  const LayerCost layer = {
      .forward_ns = 1, .backward_input_ns = 20, .backward_weight_ns = 30, .shared_backward_ns = 15};
  EXPECT_EQ(layer.fused_backward_ns(), 35);
  EXPECT_EQ(layer.batch_ns(2), 72);
}

TEST(CheckLayers, SharedWorkIsAPartOfBoth) {
  LayerCost layer = {.name = "head", .backward_input_ns = 20, .backward_weight_ns = 30};
  layer.shared_backward_ns = 20;
  EXPECT_OK(CheckLayers({layer}));
  layer.shared_backward_ns = 21;
  EXPECT_THAT(CheckLayers({layer}),
              IsRefused("layer 0 (head): shared_backward_ns is 21, expected at most"));
}

TEST(AlignTensor, RoundsUpToMultiples) {
  EXPECT_EQ(AlignTensor(0), 0);
  EXPECT_EQ(AlignTensor(1), 64);
  EXPECT_EQ(AlignTensor(64), 64);
  EXPECT_EQ(AlignTensor(65), 128);
}

TEST(CheckLayers, AcceptsLayersWithoutTimeOrMemory) { EXPECT_OK(CheckLayers({LayerCost()})); }

TEST(CheckLayers, NamesLayerAndFieldOfABadTime) {
  double LayerCost::*const times[] = {&LayerCost::forward_ns, &LayerCost::backward_input_ns,
                                      &LayerCost::backward_weight_ns,
                                      &LayerCost::shared_backward_ns, &LayerCost::step_ns};
  const char* const names[] = {"forward_ns", "backward_input_ns", "backward_weight_ns",
                               "shared_backward_ns", "step_ns"};
  for (size_t i = 0; i < std::size(times); ++i) {
    for (const double bad : {-1.0, std::nan(""), HUGE_VAL}) {
      std::vector<LayerCost> layers(3);
      layers[1].name = "pool";
      layers[1].*times[i] = bad;
      EXPECT_THAT(CheckLayers(layers),
                  IsRefused(AllOf(HasSubstr("layer 1 (pool)"), HasSubstr(names[i]))));
    }
  }
}

TEST(CheckLayers, RefusesMoreRoundedCopiesThanIsResident) {
  LayerCost layer = {.name = "head"};
  layer.memory.working_bytes = layer.memory.other_resident_bytes = 64;
  EXPECT_OK(CheckLayers({layer}));
  layer.memory.working_bytes = 128;
  EXPECT_THAT(CheckLayers({layer}),
              IsRefused("layer 0 (head): working_bytes is 128, expected at most"));
  layer.memory.working_bytes = 24;
  layer.memory.frozen_bytes = 40;
  EXPECT_OK(CheckLayers({layer}));
  layer.memory.frozen_bytes = 41;
  EXPECT_THAT(CheckLayers({layer}),
              IsRefused("layer 0 (head): frozen_bytes is 41, expected at most the rest of "
                        "other_resident_bytes, 40"));
}

TEST(CheckLayers, NamesTheFieldOfASizeOutOfRange) {
  const std::pair<int64_t LayerMemory::*, const char*> sizes[] = {
      {&LayerMemory::parameter_bytes, "parameter_bytes"},
      {&LayerMemory::optimizer_bytes, "optimizer_bytes"},
      {&LayerMemory::other_resident_bytes, "other_resident_bytes"},
      {&LayerMemory::input_bytes, "input_bytes"},
      {&LayerMemory::output_bytes, "output_bytes"},
      {&LayerMemory::stash_bytes, ": stash_bytes"},
      {&LayerMemory::weight_stash_bytes, "weight_stash_bytes"},
      {&LayerMemory::gradient_stash_bytes, "gradient_stash_bytes"},
      {&LayerMemory::workspace_bytes, "workspace_bytes"},
  };
  for (const auto& [size, name] : sizes) {
    for (const int64_t bad : {int64_t{-1}, schedule::kMaxSizeBytes + 1}) {
      std::vector<LayerCost> layers(1);
      layers[0].memory.*size = bad;
      EXPECT_THAT(CheckLayers(layers), IsRefused(name));
    }
  }
}

TEST(CheckLayers, RefusesANegativeParameterCount) {
  std::vector<LayerCost> layers(1);
  layers[0].parameters = -1;
  EXPECT_THAT(CheckLayers(layers), IsRefused("parameters"));
}

}  // namespace
}  // namespace stagecoach::partition
