// The networks that PipeDream (Narayanan et al. 2019) was published with, and what is known to be
// best for them.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/exact/graph.h"
#include "partition/files/pipedream_profile.h"
#include "partition/profile.h"
#include "partition/search/groups.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::testing::ElementsAre;

Profile Published(const std::string& name) {
  const absl::StatusOr<Profile> profile = ReadPipedreamProfile(
      absl::StrCat(STAGECOACH_PARTITION_TEST_DATA, "/pipedream/", name, ".txt"));
  EXPECT_OK(profile);
  return profile.value_or(Profile());
}

GraphProblem ProblemOf(const Profile& profile, int stages) {
  GraphProblem problem = {.layers = profile.num_layers(), .edges = profile.edges};
  problem.chain.stages = stages;
  for (const LayerCost& layer : profile.sizes[0].layers) {
    problem.chain.layer_ns.push_back(layer.batch_ns(1));
    problem.output_bytes.push_back(layer.memory.output_bytes);
  }
  return problem;
}

// Each layer once, and every edge within a stage or to a later one.
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

// In microseconds, without communication.
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

// The cost of a stage in PipeDream's own optimizer, in seconds: computing, and summing gradients
// over the m replicas (4 (m - 1) / m of the parameters), are shared by the replicas; so are its
// input and its output, each passing twice. The slowest of the three counts.
double PipedreamStage(const Profile& profile, const GroupProblem::Stage& stage,
                      double bytes_per_second) {
  const std::vector<LayerCost>& layers = profile.sizes[0].layers;
  const double m = stage.devices;
  double compute = 0, parameters = 0;
  for (int i = stage.first; i <= stage.last; ++i) {
    compute += layers[i].batch_ns(1) / 1e9;
    parameters += static_cast<double>(layers[i].memory.parameter_bytes);
  }
  double slowest = (compute + 4 * (m - 1) * parameters / (bytes_per_second * m)) / m;
  const auto transfer = [&](int producer) {
    const auto bytes = static_cast<double>(layers[producer].memory.output_bytes);
    slowest = std::max(slowest, 2 * bytes / (bytes_per_second * m));
  };
  if (stage.first > 0) transfer(stage.first - 1);
  if (stage.last + 1 < profile.num_layers()) transfer(stage.last);
  return slowest;
}

// Layers 0 to 16 on three devices, 17 to 39 on one; sending 102,760,448 bytes is the bottleneck.
TEST(Published, PipedreamsPlanForVgg16) {
  const Profile profile = Published("vgg16");
  GroupCut best = {.bottleneck_ns = std::numeric_limits<double>::infinity()};
  for (int stages = 1; stages <= 4; ++stages) {
    const GroupProblem problem = {.layers = profile.num_layers(),
                                  .devices = 4,
                                  .stages = stages,
                                  .stage_ns = [&](const GroupProblem::Stage& stage) {
                                    return 1e9 * PipedreamStage(profile, stage, 1e9);
                                  }};
    ASSERT_OK_AND_ASSIGN(const GroupCut cut, PartitionOverGroups(problem));
    if (cut.bottleneck_ns < best.bottleneck_ns) best = cut;
  }
  EXPECT_THAT(best.first_layer, ElementsAre(0, 17));
  EXPECT_THAT(best.devices, ElementsAre(3, 1));
  EXPECT_NEAR(best.bottleneck_ns, 1e9 * 0.205520896, 1e-3);
}

}  // namespace
}  // namespace stagecoach::partition
