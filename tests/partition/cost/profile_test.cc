#include "partition/cost/profile.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/simulate/costs.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;
using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<LayerCost> NamedLayers(std::mt19937& random, int count) {
  std::vector<LayerCost> layers = RandomLayers(random, count);
  for (int i = 0; i < count; ++i) layers[i].name = absl::StrCat("layer", i);
  return layers;
}

Profile TwoSizes() {
  std::mt19937 random(1);
  const std::vector<LayerCost> layers = NamedLayers(random, 4);
  return {.model = "m",
          .sizes = {{.micro_batch_rows = 8,
                     .layers = layers,
                     .feed_bytes_per_micro_batch = 20,
                     .loss_workspace_bytes = 100,
                     .stage_bytes_per_micro_batch = 44},
                    {.micro_batch_rows = 32, .layers = layers, .loss_bytes_per_micro_batch = 16}}};
}

TEST(PartitionProfile, AcceptsChainsAndGraphs) {
  Profile profile = TwoSizes();
  EXPECT_OK(CheckProfile(profile));
  profile.edges = {{0, 1}, {0, 2}, {1, 3}, {2, 3}};
  EXPECT_OK(CheckProfile(profile));
}

TEST(PartitionProfile, RefusesWhatIsNoProfile) {
  const double late_ns = 2.0 * static_cast<double>(schedule::kMaxTimeNs);
  std::mt19937 random(2);
  const Profile longest = {
      .model = "m", .sizes = {{.micro_batch_rows = 1, .layers = NamedLayers(random, kMaxLayers)}}};
  EXPECT_OK(CheckProfile(longest));
  const Refusal<Change<Profile>> refusals[] = {
      {[](Profile& p) { p = {}; }, "0 micro-batch sizes, expected 1 to 256"},
      {[](Profile& p) { p = {.sizes = {SizedLayers()}}; }, "0 layers, expected 1 to 100000"},
      {[&](Profile& p) {
         p = longest;
         p.sizes[0].layers.push_back(p.sizes[0].layers.back());
       },
       "100001 layers, expected 1 to 100000"},
      {[](Profile& p) { p.overheads.message_ns = -1; }, "an overhead of"},
      {[](Profile& p) { p.overheads.step_ns = -1; }, "an overhead of"},
      {[&](Profile& p) { p.overheads.message_ns = late_ns; }, "an overhead of"},
      {[&](Profile& p) { p.overheads.step_ns = late_ns; }, "an overhead of"},
      {[](Profile& p) { p.sizes[1].micro_batch_rows = 8; },
       AllOf(HasSubstr("8 rows"), HasSubstr("ascend"))},
      {[](Profile& p) { p.sizes[0].micro_batch_rows = 0; },
       "0 rows: expected sizes that ascend from at least 1"},
      {[](Profile& p) { p.sizes[1].layers.pop_back(); },
       "32 rows: 3 layers, expected the 4 of the first size"},
      {[](Profile& p) { p.sizes[0].feed_bytes_per_micro_batch = -1; },
       "8 rows: the feed takes -1 bytes"},
      {[](Profile& p) { p.sizes[0].stage_bytes_per_micro_batch = -1; },
       "8 rows: the feed of a stage takes -1 bytes"},
      {[](Profile& p) { p.sizes[0].loss_workspace_bytes = -1; }, "8 rows: the loss takes -1 bytes"},
  };
  ExpectRefusedChanges(TwoSizes(), CheckProfile, refusals);
}

TEST(PartitionProfile, RefusesLayersThatDifferBetweenSizes) {
  const auto refused_after = [](auto change) {
    Profile profile = TwoSizes();
    change(profile.sizes[1].layers[2]);
    EXPECT_THAT(CheckProfile(profile), IsRefused("32 rows: layer 2 ("));
  };
  refused_after([](LayerCost& layer) { layer.name = "x"; });
  refused_after([](LayerCost& layer) { ++layer.parameters; });
  refused_after([](LayerCost& layer) { layer.recompute_stash_bytes = 0; });
  refused_after([](LayerCost& layer) {
    const bool is_forward = layer.memory.output_last_use == LastUse::kForward;
    layer.memory.output_last_use = is_forward ? LastUse::kBackwardInput : LastUse::kForward;
  });
}

TEST(PartitionProfile, RefusesNumbersOutOfRange) {
  const auto refused_after = [](const std::string& message, auto change) {
    Profile profile = TwoSizes();
    for (SizedLayers& size : profile.sizes) change(size.layers[1]);
    EXPECT_THAT(CheckProfile(profile),
                IsRefused(AllOf(HasSubstr("8 rows: layer 1 (layer1): "), HasSubstr(message))));
  };
  refused_after("forward_ns is -1", [](LayerCost& layer) { layer.forward_ns = -1; });
  refused_after("step_ns is inf",
                [](LayerCost& layer) { layer.step_ns = std::numeric_limits<double>::infinity(); });
  refused_after("expected at most",
                [](LayerCost& layer) { layer.backward_weight_ns = 2.0 * schedule::kMaxTimeNs; });
  refused_after("stash_bytes is -64", [](LayerCost& layer) { layer.memory.stash_bytes = -64; });
  refused_after("output_gradient_last_use is F", [](LayerCost& layer) {
    layer.memory.output_gradient_last_use = LastUse::kForward;
  });
}

TEST(PartitionProfile, RefusesNames) {
  const auto refused_as = [](const std::string& name, const std::string& message) {
    Profile profile = TwoSizes();
    for (SizedLayers& size : profile.sizes) size.layers[2].name = name;
    EXPECT_THAT(CheckProfile(profile), IsRefused(message));
  };
  refused_as("", "layer 2: the name is empty");
  refused_as("layer0", "layer 2: an earlier one is also called layer0");
}

TEST(PartitionProfile, RefusesEdges) {
  const auto refused_with = [](Edge edge, const std::string& message) {
    Profile profile = TwoSizes();
    profile.edges = {{0, 1}, edge};
    EXPECT_THAT(CheckProfile(profile), IsRefused(message));
  };
  refused_with({2, 2}, "edge 2 -> 2: expected one from a layer to a later one");
  refused_with({3, 1}, "edge 3 -> 1: expected one");
  refused_with({-1, 1}, "edge -1 -> 1: expected one");
  refused_with({1, 4}, "layers being 0 to 3");
  refused_with({0, 1}, "edge 0 -> 1: there twice");
}

TEST(PartitionProfile, LayersAtASizeOfTheProfileAreThose) {
  const Profile profile = TwoSizes();
  EXPECT_EQ(LayersAt(profile, 8), profile.sizes[0]);
  EXPECT_EQ(LayersAt(profile, 32), profile.sizes[1]);
}

TEST(PartitionProfile, OtherSizesAreScaledFromTheNearest) {
  Profile profile = TwoSizes();
  LayerCost& layer = profile.sizes[0].layers[1];
  layer.forward_ns = 10;
  layer.step_ns = 7;
  layer.flops = 40;
  layer.memory.output_bytes = 9;
  layer.memory.parameter_bytes = 640;
  layer.recompute_stash_bytes = 3;
  layer.forward_exchange = {.bytes = 100, .rounds = 2};
  layer.backward_exchange = {.bytes = 20, .rounds = 1};
  layer.input_gradient_exchange = {.bytes = 60, .rounds = 2};
  layer.weight_exchange = {.bytes = 30, .rounds = 2};
  const SizedLayers at = LayersAt(profile, 12);
  EXPECT_EQ(at.micro_batch_rows, 12);
  EXPECT_EQ(at.feed_bytes_per_micro_batch, 30);
  EXPECT_EQ(at.stage_bytes_per_micro_batch, 66);
  EXPECT_EQ(at.ends(2).stage_resident_bytes, 192);  // 132, rounded up
  EXPECT_EQ(at.loss_workspace_bytes, 150);
  EXPECT_EQ(at.layers[1].forward_ns, 15);
  EXPECT_EQ(at.layers[1].step_ns, 7);
  EXPECT_EQ(at.layers[1].forward_exchange, (PartExchange{.bytes = 150, .rounds = 2}));
  EXPECT_EQ(at.layers[1].backward_exchange, (PartExchange{.bytes = 30, .rounds = 1}));
  EXPECT_EQ(at.layers[1].input_gradient_exchange, (PartExchange{.bytes = 90, .rounds = 2}));
  EXPECT_EQ(at.layers[1].weight_exchange, (PartExchange{.bytes = 30, .rounds = 2}));
  EXPECT_EQ(at.layers[1].flops, 60);
  EXPECT_EQ(at.layers[1].memory.output_bytes, 14);  // 13.5, rounded up
  EXPECT_EQ(at.layers[1].memory.parameter_bytes, 640);
  EXPECT_EQ(at.layers[1].recompute_stash_bytes, 5);
  EXPECT_EQ(at.layers[1].memory.optimizer_bytes, profile.sizes[0].layers[1].memory.optimizer_bytes);
  for (SizedLayers& size : profile.sizes) {
    size.layers[1].recompute_stash_bytes.reset();
    size.layers[1].memory.stash_bytes = 7;
    SetRepeated({.forward_ns = 4, .flops = 2, .stash_bytes = 5}, size.layers[1]);
  }
  EXPECT_EQ(LayersAt(profile, 12).layers[1].repeated,
            (RepeatedPart{.forward_ns = 6, .flops = 3, .stash_bytes = 8}));
  // Scaled from 32, which is nearer to 28 than 8 is.
  EXPECT_EQ(LayersAt(profile, 28).loss_bytes_per_micro_batch, 14);
  EXPECT_EQ(LayersAt(profile, 28).loss_workspace_bytes, 0);
}

TEST(PartitionProfile, AChainInItsOrderIsItself) {
  std::mt19937 random(2);
  const std::vector<LayerCost> layers = NamedLayers(random, 5);
  EXPECT_EQ(InOrder(layers, {}, {0, 1, 2, 3, 4}), layers);
}

// 0 -> 1 -> 3 -> 4, 0 -> 2 -> 4: the outputs of 0 and 2 pass other layers.
TEST(PartitionProfile, WhatPassesALayerOfAGraphIsCounted) {
  std::vector<LayerCost> layers(5);
  for (int i = 0; i < 5; ++i) {
    layers[i].memory.output_bytes = 1000 << i;
    layers[i].memory.input_last_use = LastUse::kForward;
  }
  layers[0].memory.input_bytes = 7;
  layers[4].memory.input_last_use = LastUse::kBackwardWeight;
  const std::vector<Edge> edges = {{0, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 4}};

  const std::vector<LayerCost> chain = InOrder(layers, edges, {0, 1, 2, 3, 4});
  const auto bytes = [&](int64_t LayerMemory::*member) {
    std::vector<int64_t> values;
    for (const LayerCost& layer : chain) values.push_back(layer.memory.*member);
    return values;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(bytes(&LayerMemory::input_bytes), ElementsAre(7, 1000, 3000, 6000, 12000));
  EXPECT_THAT(bytes(&LayerMemory::passing_bytes), ElementsAre(0, 1000, 2000, 4000, 0));
  EXPECT_THAT(bytes(&LayerMemory::workspace_bytes), ElementsAre(0, 1024, 2048, 4032, 0));
  // Outputs 0, 1 and 2 are read beyond the next layer, output 3 is not.
  EXPECT_EQ(chain[0].memory.output_last_use, LastUse::kBackwardInput);
  EXPECT_EQ(chain[1].memory.output_last_use, LastUse::kBackwardInput);
  EXPECT_EQ(chain[3].memory.output_last_use, LastUse::kForward);
  // The output of 2 passes 3 and is kept until W by 4.
  EXPECT_EQ(chain[2].memory.input_last_use, LastUse::kForward);
  EXPECT_EQ(chain[3].memory.input_last_use, LastUse::kBackwardWeight);

  const std::vector<LayerCost> other = InOrder(layers, edges, {0, 2, 1, 3, 4});
  EXPECT_EQ(other[1].memory.output_bytes, 4000);
  EXPECT_EQ(other[2].memory.input_bytes, 5000);
  EXPECT_EQ(other[2].memory.passing_bytes, 4000);
  EXPECT_EQ(other[3].memory.passing_bytes, 4000);
}

// Follows the definition: what is produced before a place and read there or after, each output
// once.
TEST(PartitionProfile, InOrderEqualsTheDefinitionOnRandomGraphs) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const int count = 2 + static_cast<int>(random() % 9);
    const std::vector<LayerCost> layers = NamedLayers(random, count);
    std::vector<Edge> edges;
    for (int to = 1; to < count; ++to) {
      for (int from = 0; from < to; ++from) {
        if (random() % 3 == 0) edges.push_back({from, to});
      }
    }
    if (edges.empty()) continue;
    std::vector<int> order(count);
    for (int i = 0; i < count; ++i) order[i] = i;
    const std::vector<LayerCost> chain = InOrder(layers, edges, order);
    for (int place = 1; place < count; ++place) {
      int64_t given = 0, passing = 0;
      for (int from = 0; from < place; ++from) {
        const auto read_from = [&](int first) {
          return std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
            return edge.producer == from && edge.consumer >= first;
          });
        };
        given += read_from(place) ? layers[from].memory.output_bytes : 0;
        passing += read_from(place + 1) ? layers[from].memory.output_bytes : 0;
      }
      ASSERT_EQ(chain[place].memory.input_bytes, given);
      ASSERT_EQ(chain[place].memory.passing_bytes, passing);
      ASSERT_EQ(chain[place].name, layers[place].name);
    }
  }
}

}  // namespace
}  // namespace stagecoach::partition
