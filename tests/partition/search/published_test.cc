// The networks that PipeDream (Narayanan et al. 2019) was published with, and the best known
// results for them.

#include "tests/partition/published.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partition/cost/profile.h"
#include "partition/exact/graph.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

GraphProblem ProblemOf(const Profile& profile, int stages) {
  GraphProblem problem = {.layers = profile.num_layers(), .edges = profile.edges};
  problem.chain.stages = stages;
  for (const LayerCost& layer : profile.sizes[0].layers) {
    problem.chain.layer_ns.push_back(layer.batch_ns(1));
    problem.output_bytes.push_back(layer.memory.output_bytes);
  }
  return problem;
}

// Expects each layer once, and every edge within a stage or to a later one.
void ExpectLegal(const Profile& profile, const GraphCut& cut, int stages) {
  ASSERT_EQ(static_cast<int>(cut.order.size()), profile.num_layers());
  ASSERT_EQ(static_cast<int>(cut.first_layer.size()), stages);
  std::vector<int> stage_of(cut.order.size(), -1);
  int stage = -1;
  for (int place = 0; place < profile.num_layers(); ++place) {
    while (stage + 1 < stages && cut.first_layer[stage + 1] == place) ++stage;
    ASSERT_EQ(stage_of[cut.order[place]], -1);
    stage_of[cut.order[place]] = stage;
  }
  EXPECT_EQ(stage, stages - 1);
  for (const Edge& edge : profile.edges) {
    EXPECT_LE(stage_of[edge.producer], stage_of[edge.consumer]);
  }
}

// Compares in microseconds, without communication.
void ExpectBottleneck(const std::string& name, int stages, int64_t bottleneck_us) {
  SCOPED_TRACE(absl::StrCat(name, " on ", stages));
  const Profile profile = Published(name);
  ASSERT_OK_AND_ASSIGN(const GraphCut cut, PartitionGraph(ProblemOf(profile, stages)));
  EXPECT_TRUE(cut.is_optimal);
  EXPECT_NEAR(cut.bottleneck_ns, 1e3 * static_cast<double>(bottleneck_us), 1e-3);
  ExpectLegal(profile, cut, stages);
}

TEST(Published, Vgg16) {
  ExpectBottleneck("vgg16", 2, 370931);
  ExpectBottleneck("vgg16", 4, 216450);
  ExpectBottleneck("vgg16", 8, 159531);
}

TEST(Published, Alexnet) {
  ExpectBottleneck("alexnet", 2, 43075);
  ExpectBottleneck("alexnet", 4, 28721);
  ExpectBottleneck("alexnet", 8, 28721);
}

TEST(Published, Resnet50IsCutBetweenAntichains) {
  const Profile profile = Published("resnet50");
  double total_ns = 0;
  for (const LayerCost& layer : profile.sizes[0].layers) total_ns += layer.batch_ns(1);
  for (const int stages : {2, 4, 8}) {
    ASSERT_OK_AND_ASSIGN(const GraphCut cut, PartitionGraph(ProblemOf(profile, stages)));
    ExpectLegal(profile, cut, stages);
    EXPECT_GE(cut.bottleneck_ns, total_ns / stages);
    EXPECT_LT(cut.bottleneck_ns, 1.2 * total_ns / stages);
  }
}

}  // namespace
}  // namespace stagecoach::partition
