// Results of other pipeline libraries for the same layers. Each of their methods is reimplemented
// here from its description, so that the numbers next to ours are computed and not quoted.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/exact/chain.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::testing::ElementsAre;

using Weights = std::vector<int>;
using Bounds = std::vector<int>;  // first layer of each part, then the number of layers

int WeightOf(const Weights& weights, int begin, int end) {
  return std::accumulate(weights.begin() + begin, weights.begin() + end, 0);
}

int Bottleneck(const Weights& weights, const Bounds& bounds) {
  int slowest = 0;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    slowest = std::max(slowest, WeightOf(weights, bounds[i], bounds[i + 1]));
  }
  return slowest;
}

int BottleneckOfBest(const Weights& weights, int parts, int begin = 0) {
  const int layers = static_cast<int>(weights.size());
  if (parts == 1) return WeightOf(weights, begin, layers);
  int best = std::numeric_limits<int>::max();
  for (int end = begin + 1; end <= layers - (parts - 1); ++end) {
    best = std::min(
        best, std::max(WeightOf(weights, begin, end), BottleneckOfBest(weights, parts - 1, end)));
  }
  return best;
}

// Returns our result, checked against every cut.
int OurBottleneck(const Weights& weights, int parts) {
  const ChainProblem problem = {.layer_ns = std::vector<double>(weights.begin(), weights.end()),
                                .stages = parts};
  const auto cut = PartitionChain(problem);
  EXPECT_OK(cut);
  Bounds bounds = cut->first_layer;
  bounds.push_back(static_cast<int>(weights.size()));
  const int slowest = Bottleneck(weights, bounds);
  EXPECT_EQ(slowest, cut->bottleneck_ns);
  EXPECT_EQ(slowest, BottleneckOfBest(weights, parts));
  return slowest;
}

// DeepSpeed's partition_balanced (deepspeed/runtime/utils.py): a dynamic program that keeps, for
// each prefix and number of parts, the split with the least difference between its heaviest and its
// lightest part; among equals, the one whose last part is shortest.
Bounds LeastSpread(const Weights& weights, int parts) {
  struct Split {
    bool exists = false;
    int heaviest = 0;
    int lightest = std::numeric_limits<int>::max();
    Bounds bounds;
    int spread() const { return heaviest - lightest; }
  };
  const int layers = static_cast<int>(weights.size());
  std::vector<Split> splits(static_cast<size_t>(layers) + 1);  // index: layers before the end
  splits[0].exists = true;
  for (int part = 0; part < parts; ++part) {
    std::vector<Split> next(splits.size());
    for (int end = part + 1; end <= layers; ++end) {
      for (int begin = part; begin < end; ++begin) {
        if (!splits[begin].exists) continue;
        const int weight = WeightOf(weights, begin, end);
        Split split = splits[begin];
        split.heaviest = std::max(split.heaviest, weight);
        split.lightest = std::min(split.lightest, weight);
        split.bounds.push_back(begin);
        if (!next[end].exists || split.spread() <= next[end].spread()) next[end] = split;
      }
    }
    splits = next;
  }
  Bounds bounds = splits[layers].bounds;
  bounds.push_back(layers);
  return bounds;
}

// torchgpipe's balance (torchgpipe/balance/blockpartition.py), after Barany and Grinberg, "Block
// partitions of sequences": starting from parts with equally many layers, the lightest part takes a
// layer of its neighbor toward the heaviest part, until the two differ by at most the largest
// layer. It first subtracts the lightest layer from all, so that what it levels is not the load.
Bounds LeveledBlocks(Weights weights, int parts) {
  const int layers = static_cast<int>(weights.size());
  const int lightest_layer = *std::min_element(weights.begin(), weights.end());
  for (int& weight : weights) weight -= lightest_layer;
  const int largest_layer = *std::max_element(weights.begin(), weights.end());
  Bounds bounds;
  for (int part = 0; part < parts; ++part) bounds.push_back(layers / parts * part);
  bounds.push_back(layers);
  const auto weight_of = [&](int part) {
    return WeightOf(weights, bounds[part], bounds[part + 1]);
  };
  const auto find = [&](const std::function<bool(int, int)>& is_better) {
    int best = 0;
    for (int part = 1; part < parts; ++part) {
      if (is_better(weight_of(part), weight_of(best))) best = part;
    }
    return best;
  };
  int heaviest = find(std::greater_equal<>());
  int most = weight_of(heaviest);
  while (true) {
    const int lightest = find(std::less<>());
    if (most <= weight_of(lightest) + largest_layer) return bounds;
    const bool takes_last = heaviest < lightest;  // of the part before; else the next one's first
    bounds[takes_last ? lightest : lightest + 1] += takes_last ? -1 : 1;
    if (heaviest == (takes_last ? lightest - 1 : lightest + 1)) {
      heaviest = find(std::greater_equal<>());
      most = weight_of(heaviest);
    }
  }
}

TEST(Peers, DeepSpeedMinimizesTheSpreadAndIsSlowerByAQuarter) {
  const Weights weights = {4, 17, 15, 11, 7, 2, 8, 12};
  const Bounds theirs = LeastSpread(weights, 6);
  EXPECT_THAT(theirs, ElementsAre(0, 2, 3, 4, 6, 7, 8));
  EXPECT_EQ(Bottleneck(weights, theirs), 21);  // 1.235 times ours
  EXPECT_EQ(OurBottleneck(weights, 6), 17);
}

TEST(Peers, TorchgpipeLeavesHalfAsMuchAgainToOneOfTwoParts) {
  const Weights weights = {48, 50, 31, 26, 42};
  const Bounds theirs = LeveledBlocks(weights, 2);
  EXPECT_THAT(theirs, ElementsAre(0, 1, 5));
  EXPECT_EQ(Bottleneck(weights, theirs), 149);  // 1.505 times ours
  EXPECT_EQ(OurBottleneck(weights, 2), 99);
}

TEST(Peers, TorchgpipeDoesNotSeeTheLoadOfManyLightLayers) {
  const Weights weights = {21, 21, 21, 11, 42};
  const Bounds theirs = LeveledBlocks(weights, 3);
  EXPECT_THAT(theirs, ElementsAre(0, 1, 2, 5));
  EXPECT_EQ(Bottleneck(weights, theirs), 74);  // 1.76 times ours
  EXPECT_EQ(OurBottleneck(weights, 3), 42);
}

TEST(Peers, TorchgpipeCanTakeTwiceAsLong) {
  const Weights weights = {3, 2, 2, 4, 2, 2};
  const Bounds theirs = LeveledBlocks(weights, 4);
  EXPECT_THAT(theirs, ElementsAre(0, 1, 2, 3, 6));
  EXPECT_EQ(Bottleneck(weights, theirs), 8);
  EXPECT_EQ(OurBottleneck(weights, 4), 4);
}

}  // namespace
}  // namespace stagecoach::partition
