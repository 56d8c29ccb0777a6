#include "partition/io/layer_graph.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::partition {
namespace {

using ::testing::ElementsAre;

TEST(LayerGraph, KeepsAnOrderThatIsTopological) {
  EXPECT_THAT(SortLayers(4, std::vector<Edge>{{0, 3}, {1, 2}}).layers, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(SortLayers(1, {}).layers, ElementsAre(0));
}

TEST(LayerGraph, TakesTheLeastThatMayComeNext) {
  EXPECT_THAT(SortLayers(4, std::vector<Edge>{{3, 0}, {2, 1}}).layers, ElementsAre(2, 1, 3, 0));
}

TEST(LayerGraph, FindsACycle) {
  // Layers 3 and 4 are on none, although they cannot be ordered either.
  const std::vector<Edge> edges = {{0, 1}, {1, 2}, {2, 1}, {2, 3}, {3, 4}};
  const TopologicalOrder order = SortLayers(5, edges);
  ASSERT_TRUE(order.on_cycle.has_value());
  EXPECT_THAT(*order.on_cycle, ::testing::AnyOf(1, 2));
  EXPECT_EQ(SortLayers(3, std::vector<Edge>{{1, 1}}).on_cycle, 1);
}

// Random graphs with randomly numbered layers: the order is topological, and no layer that could
// have come earlier has a lower number.
TEST(LayerGraph, SortsRandomGraphs) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 1000; ++trial) {
    const int count = 1 + static_cast<int>(random() % 10);
    std::vector<int> number(count);
    for (int i = 0; i < count; ++i) number[i] = i;
    std::shuffle(number.begin(), number.end(), random);
    std::set<std::pair<int, int>> pairs;
    std::vector<Edge> edges;
    for (int i = 0; i < 2 * count; ++i) {
      const int a = static_cast<int>(random() % count), b = static_cast<int>(random() % count);
      if (a < b && pairs.emplace(a, b).second) edges.push_back({number[a], number[b]});
    }
    const TopologicalOrder order = SortLayers(count, edges);
    ASSERT_FALSE(order.on_cycle.has_value());
    ASSERT_EQ(order.layers.size(), number.size());
    std::vector<bool> done(count, false);
    for (const int layer : order.layers) {
      for (int other = 0; other <= layer; ++other) {
        const bool is_ready =
            !done[other] && std::none_of(edges.begin(), edges.end(), [&](const Edge& edge) {
              return edge.consumer == other && !done[edge.producer];
            });
        ASSERT_EQ(is_ready, other == layer) << other << " at the place of " << layer;
      }
      done[layer] = true;
    }
  }
}

Profile ThreeLayers() {
  Profile profile = {.sizes = {SizedLayers(), SizedLayers()}};
  for (SizedLayers& size : profile.sizes) {
    for (int i = 0; i < 3; ++i) size.layers.push_back({.name = absl::StrCat(i)});
  }
  return profile;
}

TEST(LayerGraph, ReordersLayersAndEdges) {
  Profile profile = ThreeLayers();
  profile.edges = {{2, 0}, {2, 1}, {0, 1}};
  ReorderLayers({2, 0, 1}, profile);
  for (const SizedLayers& size : profile.sizes) {
    EXPECT_EQ(size.layers[0].name, "2");
    EXPECT_EQ(size.layers[1].name, "0");
    EXPECT_EQ(size.layers[2].name, "1");
  }
  EXPECT_THAT(profile.edges, ElementsAre(Edge{0, 1}, Edge{0, 2}, Edge{1, 2}));
}

TEST(LayerGraph, AGraphThatIsAChainIsOne) {
  Profile profile = ThreeLayers();
  profile.edges = {{1, 0}, {2, 1}};
  ReorderLayers({2, 1, 0}, profile);
  EXPECT_TRUE(profile.is_chain());
  profile = ThreeLayers();
  profile.edges = {{0, 2}, {1, 2}};
  ReorderLayers({0, 1, 2}, profile);
  EXPECT_FALSE(profile.is_chain());
}

}  // namespace
}  // namespace stagecoach::partition
