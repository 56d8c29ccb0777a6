#include "partition/chain.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Fits = std::function<bool(int, int, int)>;

// What PartitionChain orders cuts by, least first. Exact as long as times are small whole numbers.
using Merit = std::tuple<double, double, std::vector<int>>;

// Looks at every cut; nothing if none fits.
std::optional<Merit> BruteForce(const ChainProblem& problem) {
  const int layers = static_cast<int>(problem.layer_ns.size());
  std::optional<Merit> best;
  std::vector<int> first_layer = {0};
  const std::function<void(double, double)> extend = [&](double bottleneck, double squares) {
    const int stage = static_cast<int>(first_layer.size()) - 1;
    const int first = first_layer.back();
    double time = 0;
    for (int last = first; last < layers; ++last) {
      time += problem.layer_ns[last];
      const bool ends_here = (stage == problem.stages - 1) == (last == layers - 1);
      if (!ends_here || (problem.fits && !problem.fits(first, last, stage))) continue;
      const double slowest = std::max(bottleneck, time);
      const double sum = squares + time * time;
      if (last == layers - 1) {
        const Merit merit = {slowest, sum, first_layer};
        if (!best || merit < *best) best = merit;
        continue;
      }
      first_layer.push_back(last + 1);
      extend(slowest, sum);
      first_layer.pop_back();
    }
  };
  extend(0, 0);
  return best;
}

// Small whole times, so that ties are common, with zeros among them.
ChainProblem RandomProblem(std::mt19937& random) {
  ChainProblem problem;
  const int layers = 1 + static_cast<int>(random() % 10);
  const unsigned distinct = 1 + random() % 8;
  for (int i = 0; i < layers; ++i) problem.layer_ns.push_back(random() % distinct);
  problem.stages = 1 + static_cast<int>(random() % layers);
  return problem;
}

void ExpectBest(const ChainProblem& problem) {
  const std::optional<Merit> best = BruteForce(problem);
  const auto cut = PartitionChain(problem);
  if (!best) {
    EXPECT_THAT(cut, StatusIs(absl::StatusCode::kResourceExhausted));
    return;
  }
  ASSERT_OK(cut);
  EXPECT_EQ(cut->bottleneck_ns, std::get<0>(*best));
  EXPECT_EQ(cut->first_layer, std::get<2>(*best));
}

TEST(PartitionChain, AgreesWithBruteForceWithoutMemory) {
  std::mt19937 random(1);
  for (int i = 0; i < 6000; ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(ExpectBest(RandomProblem(random)));
  }
}

TEST(PartitionChain, AgreesWithBruteForceUnderMemoryThatDependsOnTheStage) {
  std::mt19937 random(2);
  for (int i = 0; i < 6000; ++i) {
    SCOPED_TRACE(i);
    ChainProblem problem = RandomProblem(random);
    std::vector<int> bytes(problem.layer_ns.size());
    for (int& b : bytes) b = static_cast<int>(random() % 6);
    const int budget = static_cast<int>(random() % 40);
    problem.fits = [&bytes, budget, stages = problem.stages](int first, int last, int stage) {
      int sum = 0;
      for (int layer = first; layer <= last; ++layer) sum += bytes[layer] * (1 + stages - stage);
      return sum <= budget;
    };
    ASSERT_NO_FATAL_FAILURE(ExpectBest(problem));
  }
}

TEST(PartitionChain, AgreesWithBruteForceWhereWhatFitsIsArbitrary) {
  std::mt19937 random(3);
  for (int i = 0; i < 6000; ++i) {
    SCOPED_TRACE(i);
    ChainProblem problem = RandomProblem(random);
    const size_t layers = problem.layer_ns.size();
    const unsigned percent = 40 + random() % 60;
    std::vector<bool> verdicts(layers * layers * problem.stages);
    for (size_t j = 0; j < verdicts.size(); ++j) verdicts[j] = random() % 100 < percent;
    problem.fits = [&verdicts, layers](int first, int last, int stage) {
      return verdicts[(stage * layers + first) * layers + last];
    };
    ASSERT_NO_FATAL_FAILURE(ExpectBest(problem));
  }
}

TEST(PartitionChain, AsksForEveryRangeAtMostOnceAndOnlyForPossibleOnes) {
  std::mt19937 random(4);
  for (int i = 0; i < 500; ++i) {
    ChainProblem problem = RandomProblem(random);
    const int layers = static_cast<int>(problem.layer_ns.size());
    std::map<std::tuple<int, int, int>, int> asked;
    problem.fits = [&](int first, int last, int stage) {
      EXPECT_GE(first, stage);
      EXPECT_LE(first, last);
      EXPECT_LE(last, layers - problem.stages + stage);
      EXPECT_EQ(++asked[std::make_tuple(first, last, stage)], 1);
      return (first + last + stage) % 5 != 0;
    };
    (void)PartitionChain(problem);
    ASSERT_FALSE(HasFailure()) << "problem " << i;
  }
}

// The peer that minimises (max - min) instead is 1.235 times slower here.
TEST(PartitionChain, FindsTheBottleneckOptimumWherePeersMissIt) {
  const ChainProblem problem = {.layer_ns = {4, 17, 15, 11, 7, 2, 8, 12}, .stages = 6};
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_EQ(cut.bottleneck_ns, 17);
}

TEST(PartitionChain, PrefersEvenStagesAmongEqualBottlenecks) {
  const ChainProblem problem = {.layer_ns = {9, 1, 1, 1, 1, 1, 1}, .stages = 3};
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 1, 4));
}

TEST(PartitionChain, PrefersTheLexicographicallyFirstAmongEquallyEvenCuts) {
  const ChainProblem problem = {.layer_ns = {1, 1, 1, 1}, .stages = 3};
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 1, 2));
}

TEST(PartitionChain, RoundingDoesNotTellEqualLayersApart) {
  // 0.1 * 3 and 0.1 + 0.1 + 0.1 differ in double, and so do partial sums from different starts.
  for (const double ns : {0.1, 1.0 / 3.0, 1e-300, 1e300, 123456.789}) {
    SCOPED_TRACE(ns);
    const ChainProblem problem = {.layer_ns = std::vector<double>(48, ns), .stages = 8};
    ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
    EXPECT_THAT(cut.first_layer, ElementsAre(0, 6, 12, 18, 24, 30, 36, 42));
    EXPECT_DOUBLE_EQ(cut.bottleneck_ns, 6 * ns);
  }
}

TEST(PartitionChain, TakesTheLargestTimesWithoutOverflow) {
  const double most = std::numeric_limits<double>::max();
  const ChainProblem problem = {.layer_ns = {most, most, most}, .stages = 3};
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 1, 2));
}

TEST(PartitionChain, CutsLayersThatTakeNoTime) {
  const ChainProblem problem = {.layer_ns = {0, 0, 0, 0}, .stages = 2};
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 1));
  EXPECT_EQ(cut.bottleneck_ns, 0);
}

TEST(PartitionChain, GivesOneStageAllLayers) {
  const ChainProblem problem = {.layer_ns = {3, 1, 2}, .stages = 1};
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0));
  EXPECT_EQ(cut.bottleneck_ns, 6);
}

TEST(PartitionChain, AcceptsASlowerCutWhereTheFastestDoesNotFit) {
  ChainProblem problem = {.layer_ns = {1, 1, 1, 1}, .stages = 2};
  problem.fits = [](int first, int last, int stage) { return stage > 0 || last - first < 1; };
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 1));
  EXPECT_EQ(cut.bottleneck_ns, 3);
}

TEST(PartitionChain, ReportsThatNothingFits) {
  ChainProblem problem = {.layer_ns = {1, 1}, .stages = 2};
  problem.fits = [](int, int, int stage) { return stage == 0; };
  EXPECT_THAT(PartitionChain(problem), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(PartitionChain, RefusesMoreStagesThanLayers) {
  EXPECT_THAT(PartitionChain({.layer_ns = {1, 1}, .stages = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 layers into 3 stages")));
}

TEST(PartitionChain, RefusesNoStage) {
  EXPECT_THAT(PartitionChain({.layer_ns = {1, 1}, .stages = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 stages")));
}

TEST(PartitionChain, RefusesTimesThatAreNegativeOrNotFinite) {
  for (const double ns : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(PartitionChain({.layer_ns = {1, ns}, .stages = 1}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer 1")));
  }
}

}  // namespace
}  // namespace stagecoach::partition
