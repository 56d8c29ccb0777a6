#include "partition/search/groups.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kForbidden = std::numeric_limits<double>::infinity();

// Last layer and devices of every stage: the order among cuts with the same times.
using Shape = std::vector<std::pair<int, int>>;
using Merit = std::tuple<double, double, Shape>;

// Looks at every cut; nothing if none is allowed.
std::optional<Merit> BruteForce(const GroupProblem& problem) {
  std::optional<Merit> best;
  Shape shape;
  const std::function<void(int, int, double, double)> extend = [&](int first, int first_device,
                                                                   double slowest, double sum) {
    const int index = static_cast<int>(shape.size());
    if (index == problem.stages) {
      if (first < problem.layers || first_device < problem.devices) return;
      const Merit merit = {slowest, sum, shape};
      if (!best || merit < *best) best = merit;
      return;
    }
    for (int last = first; last < problem.layers; ++last) {
      for (int devices = 1; first_device + devices <= problem.devices; ++devices) {
        const double ns = problem.stage_ns({first, last, index, first_device, devices});
        if (ns == kForbidden) continue;
        shape.push_back({last, devices});
        extend(last + 1, first_device + devices, std::max(slowest, ns), sum + ns);
        shape.pop_back();
      }
    }
  };
  extend(0, 0, 0, 0);
  return best;
}

Shape ShapeOf(const GroupCut& cut, int layers) {
  Shape shape;
  for (size_t i = 0; i < cut.first_layer.size(); ++i) {
    const int next = i + 1 < cut.first_layer.size() ? cut.first_layer[i + 1] : layers;
    shape.push_back({next - 1, cut.devices[i]});
  }
  return shape;
}

// A table of small whole times, unrelated to what the range holds, some forbidden.
GroupProblem RandomProblem(std::mt19937& random) {
  GroupProblem problem = {.layers = 1 + static_cast<int>(random() % 6),
                          .devices = 1 + static_cast<int>(random() % 6)};
  problem.stages = 1 + static_cast<int>(random() % std::min(problem.layers, problem.devices));
  const int layers = problem.layers;
  const int devices = problem.devices;
  std::vector<double> table(layers * layers * problem.stages * devices * devices);
  const unsigned percent = random() % 60;
  const unsigned distinct = 1 + random() % 12;
  for (double& ns : table) ns = random() % 100 < percent ? kForbidden : random() % distinct;
  problem.stage_ns = [=, table = std::move(table)](const GroupProblem::Stage& stage) {
    const int range = (stage.index * layers + stage.first) * layers + stage.last;
    return table[(range * devices + stage.first_device) * devices + stage.devices - 1];
  };
  return problem;
}

TEST(PartitionOverGroups, EqualsBruteForce) {
  std::mt19937 random(1);
  int allowed = 0;
  for (int i = 0; allowed < 10'000; ++i) {
    SCOPED_TRACE(i);
    const GroupProblem problem = RandomProblem(random);
    const std::optional<Merit> best = BruteForce(problem);
    const auto cut = PartitionOverGroups(problem);
    if (!best) {
      ASSERT_THAT(cut, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("is allowed")));
      continue;
    }
    ++allowed;
    ASSERT_OK(cut);
    ASSERT_EQ(cut->bottleneck_ns, std::get<0>(*best));
    ASSERT_EQ(ShapeOf(*cut, problem.layers), std::get<2>(*best));
  }
}

TEST(PartitionOverGroups, AsksOnlyForStagesOfAPossibleCut) {
  const GroupProblem problem = {
      .layers = 7, .devices = 6, .stages = 3, .stage_ns = [](const GroupProblem::Stage& stage) {
        EXPECT_LE(stage.index, stage.first);
        EXPECT_LE(stage.first, stage.last);
        EXPECT_LE(stage.last, 7 - 3 + stage.index);
        EXPECT_LE(stage.index, stage.first_device);
        EXPECT_GE(stage.devices, 1);
        EXPECT_LE(stage.first_device + stage.devices, 6 - 2 + stage.index);
        return 1.0;
      }};
  EXPECT_OK(PartitionOverGroups(problem));
}

// Layers of 1, 1, 4 ns: the last one shared by two devices is as fast as the others.
TEST(PartitionOverGroups, GivesTheSlowStageMoreDevices) {
  const std::vector<double> layer_ns = {1, 1, 4};
  const GroupProblem problem = {
      .layers = 3, .devices = 3, .stages = 2, .stage_ns = [&](const GroupProblem::Stage& stage) {
        double ns = 0;
        for (int layer = stage.first; layer <= stage.last; ++layer) ns += layer_ns[layer];
        return ns / stage.devices;
      }};
  ASSERT_OK_AND_ASSIGN(const GroupCut cut, PartitionOverGroups(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 2));
  EXPECT_THAT(cut.devices, ElementsAre(1, 2));
  EXPECT_EQ(cut.bottleneck_ns, 2);
}

TEST(PartitionOverGroups, RefusesShapesThatLeaveAStageEmpty) {
  GroupProblem problem = {
      .layers = 3, .devices = 3, .stages = 0, .stage_ns = [](const auto&) { return 1.0; }};
  EXPECT_THAT(PartitionOverGroups(problem),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 stages")));
  problem.stages = 4;
  EXPECT_THAT(PartitionOverGroups(problem),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 layers into 4 stages")));
  problem.layers = 4;
  EXPECT_THAT(PartitionOverGroups(problem),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 stages over 3 devices")));
}

}  // namespace
}  // namespace stagecoach::partition
