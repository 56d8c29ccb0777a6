#include "partition/exact/graph.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;

constexpr double kNotAllowed = std::numeric_limits<double>::infinity();

// A problem and the edges that it refers to.
struct Graph {
  std::vector<Edge> edges;
  std::vector<int64_t> output_bytes;
  ChainProblem chain;

  GraphProblem problem() const {
    return {.layers = static_cast<int>(output_bytes.size()),
            .edges = edges,
            .output_bytes = output_bytes,
            .chain = chain};
  }
};

// Counts each output that is produced in a stage up to `stage` and read in a later one, once.
int64_t BytesAfter(const Graph& graph, const std::vector<int>& stage_of, int stage) {
  std::vector<bool> passes(stage_of.size(), false);
  for (const Edge& edge : graph.edges) {
    if (stage_of[edge.producer] <= stage && stage_of[edge.consumer] > stage) {
      passes[edge.producer] = true;
    }
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (passes[i]) bytes += graph.output_bytes[i];
  }
  return bytes;
}

double StageNs(const Graph& graph, const std::vector<int>& stage_of, int stage) {
  const ChainProblem& chain = graph.chain;
  double compute = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < stage_of.size(); ++i) {
    if (stage_of[i] != stage) continue;
    compute += chain.layer_ns[i] / (chain.speeds.empty() ? 1.0 : chain.speeds[stage]);
    if (chain.budget_bytes.empty()) continue;
    bytes += chain.layer_bytes[i] + chain.in_flight[stage] * chain.layer_stash_bytes[i];
  }
  if (!chain.budget_bytes.empty() && bytes > chain.budget_bytes[stage]) return kNotAllowed;
  double receive = 0;
  double send = 0;
  if (!chain.links.empty()) {
    const auto message = [&](int link) {
      const int64_t cut = BytesAfter(graph, stage_of, link);
      return static_cast<double>(2 * chain.micro_batches * chain.links[link].TransferNs(cut));
    };
    if (stage > 0) receive = message(stage - 1);
    if (stage + 1 < chain.stages) send = message(stage);
  }
  return chain.overlaps_messages ? std::max({compute, receive, send}) : compute + receive + send;
}

// Returns the slowest stage; infinity if the assignment is not a cut.
double SlowestNs(const Graph& graph, const std::vector<int>& stage_of) {
  for (const Edge& edge : graph.edges) {
    if (stage_of[edge.producer] > stage_of[edge.consumer]) return kNotAllowed;
  }
  double slowest = 0;
  for (int stage = 0; stage < graph.chain.stages; ++stage) {
    if (std::count(stage_of.begin(), stage_of.end(), stage) == 0) return kNotAllowed;
    slowest = std::max(slowest, StageNs(graph, stage_of, stage));
  }
  return slowest;
}

// Tries every assignment of layers to stages.
double BruteForce(const Graph& graph) {
  std::vector<int> stage_of(graph.output_bytes.size(), 0);
  double best = kNotAllowed;
  while (true) {
    best = std::min(best, SlowestNs(graph, stage_of));
    size_t i = 0;
    while (i < stage_of.size() && ++stage_of[i] == graph.chain.stages) stage_of[i++] = 0;
    if (i == stage_of.size()) return best;
  }
}

std::vector<int> StageOfEach(const GraphCut& cut) {
  std::vector<int> stage_of(cut.order.size(), -1);
  for (size_t place = 0; place < cut.order.size(); ++place) {
    const auto next = std::upper_bound(cut.first_layer.begin(), cut.first_layer.end(), place);
    stage_of[cut.order[place]] = static_cast<int>(next - cut.first_layer.begin()) - 1;
  }
  return stage_of;
}

bool IsTopological(const std::vector<Edge>& edges, const std::vector<int>& order) {
  return std::all_of(edges.begin(), edges.end(), [&](const Edge& edge) {
    return std::find(order.begin(), order.end(), edge.producer) <
           std::find(order.begin(), order.end(), edge.consumer);
  });
}

struct GraphKind {
  bool has_messages = false;
  bool overlaps_messages = false;
  bool has_speeds = false;
  bool has_memory = false;
};

// Uses small whole times and speeds that keep them exact in double.
Graph RandomGraph(std::mt19937& random, const GraphKind& kind) {
  Graph graph;
  const size_t layers = 1 + random() % 7;
  const unsigned percent = random() % 100;
  for (int consumer = 1; consumer < static_cast<int>(layers); ++consumer) {
    for (int producer = 0; producer < consumer; ++producer) {
      if (random() % 100 < percent) graph.edges.push_back({producer, consumer});
    }
  }
  graph.output_bytes = RandomCounts(random, layers, 5);
  ChainProblem& chain = graph.chain;
  for (size_t i = 0; i < layers; ++i) chain.layer_ns.push_back(random() % 8);
  chain.stages = 1 + static_cast<int>(random() % std::min<size_t>(layers, 4));
  const size_t stages = static_cast<size_t>(chain.stages);
  if (kind.has_messages) {
    chain.micro_batches = 1 + random() % 2;
    for (size_t i = 0; i + 1 < stages; ++i) {
      chain.links.push_back({static_cast<int64_t>(random() % 2), 1e9 / (1 + random() % 2)});
    }
    chain.overlaps_messages = kind.overlaps_messages;
  }
  if (kind.has_speeds) {
    for (size_t i = 0; i < stages; ++i) chain.speeds.push_back(std::ldexp(0.5, random() % 4));
  }
  if (kind.has_memory) {
    chain.layer_bytes = RandomCounts(random, layers, 6);
    chain.layer_stash_bytes = RandomCounts(random, layers, 3);
    chain.in_flight = RandomCounts(random, stages, 4);
    const unsigned most = 5 + random() % 40;
    chain.budget_bytes = RandomCounts(random, stages, most);
  }
  return graph;
}

void ExpectBestOfEachGraph(const GraphKind& kind, unsigned seed) {
  std::mt19937 random(seed);
  int allowed = 0;
  for (int i = 0; allowed < 10'000; ++i) {
    SCOPED_TRACE(i);
    const Graph graph = RandomGraph(random, kind);
    const double best = BruteForce(graph);
    const auto cut = PartitionGraph(graph.problem());
    if (best == kNotAllowed) {
      ASSERT_THAT(cut, StatusIs(absl::StatusCode::kResourceExhausted));
      continue;
    }
    ++allowed;
    ASSERT_OK(cut);
    ASSERT_EQ(cut->bottleneck_ns, best);
    ASSERT_TRUE(cut->is_optimal);
    ASSERT_TRUE(IsTopological(graph.edges, cut->order));
    ASSERT_EQ(SlowestNs(graph, StageOfEach(*cut)), best);
  }
}

TEST(PartitionGraph, EqualsBruteForce) { ExpectBestOfEachGraph({}, 1); }

TEST(PartitionGraph, EqualsBruteForceWithMessagesAdded) {
  ExpectBestOfEachGraph({.has_messages = true}, 2);
}

TEST(PartitionGraph, EqualsBruteForceWithMessagesOverlapped) {
  ExpectBestOfEachGraph({.has_messages = true, .overlaps_messages = true}, 3);
}

TEST(PartitionGraph, EqualsBruteForceWithSpeeds) { ExpectBestOfEachGraph({.has_speeds = true}, 4); }

TEST(PartitionGraph, EqualsBruteForceUnderMemoryThatDependsOnTheStage) {
  ExpectBestOfEachGraph({.has_memory = true}, 5);
}

TEST(PartitionGraph, EqualsBruteForceWithEverything) {
  ExpectBestOfEachGraph({.has_messages = true, .has_speeds = true, .has_memory = true}, 6);
}

Graph ChainGraph(int layers, int stages) {
  Graph graph;
  graph.output_bytes.assign(layers, 0);
  graph.chain.stages = stages;
  std::mt19937 random(7);
  for (int i = 0; i < layers; ++i) {
    graph.chain.layer_ns.push_back(1 + random() % 1000);
    if (i > 0) graph.edges.push_back({i - 1, i});
  }
  return graph;
}

TEST(PartitionGraph, CutsAChainOfAnyLengthAsPartitionChainDoes) {
  Graph graph = ChainGraph(8192, 50);
  graph.edges.push_back({3, 2000});  // changes no order
  ASSERT_OK_AND_ASSIGN(const GraphCut cut, PartitionGraph(graph.problem()));
  ASSERT_OK_AND_ASSIGN(const ChainCut expected, PartitionChain(graph.chain));
  EXPECT_TRUE(cut.is_optimal);
  EXPECT_EQ(cut.first_layer, expected.first_layer);
  EXPECT_EQ(cut.bottleneck_ns, expected.bottleneck_ns);
  EXPECT_TRUE(std::is_sorted(cut.order.begin(), cut.order.end()));
}

// Nineteen independent layers have 2^19 closed sets.
TEST(PartitionGraph, SaysThatAFasterCutMayExistWhereThereAreTooManySets) {
  Graph graph;
  graph.output_bytes.assign(19, 1);
  graph.chain.layer_ns = {9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 8};
  graph.chain.stages = 3;
  ASSERT_OK_AND_ASSIGN(const GraphCut cut, PartitionGraph(graph.problem()));
  EXPECT_FALSE(cut.is_optimal);
  EXPECT_EQ(cut.bottleneck_ns, SlowestNs(graph, StageOfEach(cut)));
  EXPECT_EQ(cut.bottleneck_ns, 12);
}

TEST(PartitionGraph, TriesEverySetUpToTheLimit) {
  Graph graph;
  graph.output_bytes.assign(18, 1);  // 2^18 closed sets: the most that are tried
  graph.chain.layer_ns = {9, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  graph.chain.stages = 3;
  ASSERT_OK_AND_ASSIGN(const GraphCut cut, PartitionGraph(graph.problem()));
  EXPECT_TRUE(cut.is_optimal);
  EXPECT_EQ(cut.bottleneck_ns, 14);
}

// The largest layer alone takes that long, whatever the order.
TEST(PartitionGraph, IsProvedByALayerWhereThereAreTooManySets) {
  Graph graph;
  graph.output_bytes.assign(30, 1);
  graph.chain.layer_ns.assign(30, 1);
  graph.chain.layer_ns.back() = 9;
  graph.chain.stages = 5;
  ASSERT_OK_AND_ASSIGN(const GraphCut cut, PartitionGraph(graph.problem()));
  EXPECT_TRUE(cut.is_optimal);
  EXPECT_EQ(cut.bottleneck_ns, 9);
}

// Ten branches of ten layers have 11^10 closed sets. No order that ends one branch before it begins
// the next is balanced.
TEST(PartitionGraph, TriesOtherOrdersWhereThereAreTooManySets) {
  constexpr int kBranches = 10, kLayersOfEach = 10;
  Graph graph;
  for (int branch = 0; branch < kBranches; ++branch) {
    for (int i = 0; i < kLayersOfEach; ++i) {
      if (i > 0)
        graph.edges.push_back({kLayersOfEach * branch + i - 1, kLayersOfEach * branch + i});
      graph.chain.layer_ns.push_back(i + 1 == kLayersOfEach ? 91 : 1);
    }
  }
  graph.output_bytes.assign(graph.chain.layer_ns.size(), 1);
  graph.chain.stages = 4;
  const double in_order = PartitionChain(graph.chain)->bottleneck_ns;
  ASSERT_OK_AND_ASSIGN(const GraphCut cut, PartitionGraph(graph.problem()));
  EXPECT_FALSE(cut.is_optimal);
  EXPECT_LT(cut.bottleneck_ns, in_order);
  EXPECT_TRUE(IsTopological(graph.edges, cut.order));
  EXPECT_EQ(cut.bottleneck_ns, SlowestNs(graph, StageOfEach(cut)));
}

// No claim is false, however early the search ends.
TEST(PartitionGraph, ClaimsNothingThatItDidNotSearch) {
  std::mt19937 random(8);
  int unproved = 0, beaten = 0;
  for (int i = 0; i < 4000; ++i) {
    SCOPED_TRACE(i);
    const Graph graph = RandomGraph(random, {.has_messages = i % 2 == 0, .has_memory = i % 4 == 1});
    const double best = BruteForce(graph);
    int asks = static_cast<int>(random() % 12);
    const auto cut = PartitionGraph(graph.problem(), [&] { return asks-- <= 0; });
    if (!cut.ok()) continue;
    ASSERT_TRUE(IsTopological(graph.edges, cut->order));
    ASSERT_EQ(SlowestNs(graph, StageOfEach(*cut)), cut->bottleneck_ns);
    ASSERT_TRUE(!cut->is_optimal || cut->bottleneck_ns == best);
    unproved += cut->is_optimal ? 0 : 1;
    beaten += cut->bottleneck_ns > best ? 1 : 0;
  }
  EXPECT_GT(unproved, 200);
  EXPECT_GT(beaten, 50);
}

// Two branches from layer 0 to layer 5: in the given order their outputs pass the cut together.
TEST(PartitionGraph, CutsBetweenBranchesWhereLessPasses) {
  Graph graph;
  graph.edges = {{0, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 5}, {4, 5}};
  graph.output_bytes = {1, 100, 1, 1, 100, 1};
  graph.chain.layer_ns = {2, 2, 2, 2, 2, 2};
  graph.chain.stages = 2;
  graph.chain.links = {{.latency_ns = 0, .bytes_per_second = 1e9}};
  ASSERT_OK_AND_ASSIGN(const GraphCut cut, PartitionGraph(graph.problem()));
  EXPECT_THAT(cut.order, ElementsAre(0, 1, 3, 2, 4, 5));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 3));
  EXPECT_EQ(cut.bottleneck_ns, 3 * 2 + 2 * 2);  // each of two bytes there and back
}

TEST(PartitionGraph, RefusesEdgesThatGoBackOrLeaveTheGraph) {
  for (const Edge& edge : {Edge{1, 1}, Edge{1, 0}, Edge{-1, 1}, Edge{0, 3}}) {
    Graph graph = ChainGraph(3, 2);
    graph.edges.push_back(edge);
    EXPECT_THAT(PartitionGraph(graph.problem()), IsRefused("edge 2"));
  }
}

TEST(PartitionGraph, RefusesFieldsOfTheWrongLengthAndBadOutputs) {
  Graph graph = ChainGraph(3, 2);
  graph.chain.layer_ns.pop_back();
  EXPECT_THAT(PartitionGraph(graph.problem()), IsRefused("3 layers with 2 times"));
  graph = ChainGraph(3, 2);
  graph.output_bytes[1] = -1;
  EXPECT_THAT(PartitionGraph(graph.problem()), IsRefused("layer 1 is -1"));
}

TEST(PartitionGraph, RefusesWhatPartitionChainRefuses) {
  Graph graph = ChainGraph(3, 2);
  graph.chain.speeds = {1, -1};
  EXPECT_THAT(PartitionGraph(graph.problem()), IsRefused("stage 1 has speed -1"));
  graph = ChainGraph(3, 4);
  EXPECT_THAT(PartitionGraph(graph.problem()), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace stagecoach::partition
