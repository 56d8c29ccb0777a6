// Compares PartitionChain with every cut of small problems, and with slower methods on large ones.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/exact/chain.h"
#include "schedule/simulate/costs.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::StatusIs;

constexpr double kForbidden = std::numeric_limits<double>::infinity();
constexpr int kProblems = 30'000;

// Follows the contract of ChainProblem literally.
double StageNs(const ChainProblem& problem, int first, int last, int stage) {
  const double speed = problem.speeds.empty() ? 1.0 : problem.speeds[stage];
  double compute = 0;
  int64_t bytes = 0;
  for (int layer = first; layer <= last; ++layer) {
    compute += problem.layer_ns[layer] / speed;
    if (!problem.layer_bytes.empty()) bytes += problem.layer_bytes[layer];
    if (!problem.layer_stash_bytes.empty()) {
      bytes += problem.in_flight[stage] * problem.layer_stash_bytes[layer];
    }
  }
  if (!problem.budget_bytes.empty() && bytes > problem.budget_bytes[stage]) return kForbidden;
  if (!problem.start_ns.empty()) compute += problem.start_ns[first];
  if (problem.extra_ns) compute += problem.extra_ns(first, last, stage);
  const auto message = [&](int link, int boundary) {
    if (problem.links.empty() || problem.boundary_bytes.empty()) return 0.0;
    const int64_t ns = problem.links[link].TransferNs(problem.boundary_bytes[boundary]);
    return static_cast<double>(2 * problem.micro_batches * ns);
  };
  const double receive = stage == 0 ? 0 : message(stage - 1, first);
  const double send = stage == problem.stages - 1 ? 0 : message(stage, last + 1);
  return problem.overlaps_messages ? std::max({compute, receive, send}) : compute + receive + send;
}

// Returns the time of each stage of a cut.
std::vector<double> StageTimes(const ChainProblem& problem, const std::vector<int>& first_layer) {
  std::vector<double> times;
  for (int stage = 0; stage < problem.stages; ++stage) {
    const int last = stage + 1 < problem.stages ? first_layer[stage + 1] - 1
                                                : static_cast<int>(problem.layer_ns.size()) - 1;
    times.push_back(StageNs(problem, first_layer[stage], last, stage));
  }
  return times;
}

double SlowestNs(const ChainProblem& problem, const std::vector<int>& first_layer) {
  const std::vector<double> times = StageTimes(problem, first_layer);
  return *std::max_element(times.begin(), times.end());
}

// The order of cuts in PartitionChain, least first: slowest stage, sum of squares, first layers.
using Merit = std::tuple<double, double, std::vector<int>>;

// Tries every cut; returns nothing if none is allowed.
std::optional<Merit> BruteForce(const ChainProblem& problem) {
  const int layers = static_cast<int>(problem.layer_ns.size());
  std::optional<Merit> best;
  std::vector<int> first_layer = {0};
  const std::function<void(double, double)> extend = [&](double slowest, double squares) {
    const int stage = static_cast<int>(first_layer.size()) - 1;
    const bool is_last = stage == problem.stages - 1;
    for (int last = is_last ? layers - 1 : first_layer.back(); last < layers; ++last) {
      if (!is_last && last == layers - 1) break;
      const double ns = StageNs(problem, first_layer.back(), last, stage);
      if (ns == kForbidden) continue;
      const double new_slowest = std::max(slowest, ns);
      if (is_last) {
        const Merit merit = {new_slowest, squares + ns * ns, first_layer};
        if (!best || merit < *best) best = merit;
        continue;
      }
      first_layer.push_back(last + 1);
      extend(new_slowest, squares + ns * ns);
      first_layer.pop_back();
    }
  };
  extend(0, 0);
  return best;
}

struct Kind {
  bool has_speeds = false;
  bool has_start = false;
  bool has_growing_start = false;  // at most by the time of the layer before at a speed of 1
  bool has_messages = false;
  bool overlaps_messages = false;
  bool has_memory = false;
  bool has_extra = false;
};

// Returns times that are infinite for some ranges, and neither monotone in the range nor related to
// it.
std::function<double(int, int, int)> RandomExtra(std::mt19937& random, size_t layers, int stages) {
  std::vector<double> extra(layers * layers * static_cast<size_t>(stages));
  const unsigned percent = random() % 60;
  const unsigned distinct = 1 + random() % 8;
  for (double& ns : extra) ns = random() % 100 < percent ? kForbidden : random() % distinct;
  return [extra, layers](int first, int last, int stage) {
    return extra[(stage * layers + first) * layers + last];
  };
}

// Uses small whole times, so that ties are common, with zeros among them, and speeds that keep them
// exact in double.
ChainProblem RandomProblem(std::mt19937& random, const Kind& kind, unsigned most_layers = 11) {
  ChainProblem problem;
  const size_t layers = 1 + random() % most_layers;
  const unsigned distinct = 1 + random() % 8;
  for (size_t i = 0; i < layers; ++i) problem.layer_ns.push_back(random() % distinct);
  problem.stages = 1 + static_cast<int>(random() % layers);
  const size_t stages = static_cast<size_t>(problem.stages);
  if (kind.has_speeds) {
    for (size_t i = 0; i < stages; ++i) problem.speeds.push_back(std::ldexp(0.25, random() % 5));
  }
  if (kind.has_start) {
    for (size_t i = 0; i < layers; ++i) problem.start_ns.push_back(random() % 6);
  }
  if (kind.has_growing_start) {
    problem.start_ns = {0.0};
    for (size_t i = 1; i < layers; ++i) {
      const auto most = static_cast<unsigned>(problem.layer_ns[i - 1]) + 1;
      problem.start_ns.push_back(problem.start_ns.back() + random() % most);
    }
  }
  if (kind.has_messages) {
    problem.micro_batches = 1 + random() % 3;
    problem.boundary_bytes = RandomCounts(random, layers, 5);
    for (size_t i = 0; i + 1 < stages; ++i) {
      const double bytes_per_second = random() % 4 == 0 ? 0.0 : 1e9 / (1 + random() % 3);
      problem.links.push_back({static_cast<int64_t>(random() % 3), bytes_per_second});
    }
    problem.overlaps_messages = kind.overlaps_messages;
  }
  if (kind.has_memory) {
    problem.layer_bytes = RandomCounts(random, layers, 6);
    problem.layer_stash_bytes = RandomCounts(random, layers, 3);
    problem.in_flight = RandomCounts(random, stages, 6);
    const unsigned most = 5 + random() % 60;
    problem.budget_bytes = RandomCounts(random, stages, most);
  }
  if (kind.has_extra) problem.extra_ns = RandomExtra(random, layers, problem.stages);
  return problem;
}

void ExpectBest(const ChainProblem& problem) {
  const std::optional<Merit> best = BruteForce(problem);
  const auto cut = PartitionChain(problem);
  if (!best) {
    EXPECT_THAT(cut, StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(LeastBottleneckNs(problem), StatusIs(absl::StatusCode::kResourceExhausted));
    return;
  }
  ASSERT_OK(cut);
  const double least_ns = std::get<0>(*best);
  EXPECT_EQ(cut->bottleneck_ns, least_ns);
  EXPECT_EQ(cut->first_layer, std::get<2>(*best));
  for (const double at_least_ns : {0.0, least_ns / 2, least_ns, least_ns + 1}) {
    EXPECT_EQ(LeastBottleneckNs(problem, at_least_ns).value(), std::max(at_least_ns, least_ns));
  }
}

void ExpectBestOfEach(const Kind& kind, unsigned seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < kProblems && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    ExpectBest(RandomProblem(random, kind));
  }
}

TEST(PartitionChain, EqualsBruteForce) { ExpectBestOfEach({}, 1); }

TEST(PartitionChain, EqualsBruteForceWithStarts) { ExpectBestOfEach({.has_start = true}, 2); }

TEST(PartitionChain, EqualsBruteForceWithStartsThatGrow) {
  ExpectBestOfEach({.has_growing_start = true}, 10);
  ExpectBestOfEach({.has_speeds = true, .has_growing_start = true}, 11);
  ExpectBestOfEach({.has_growing_start = true, .has_messages = true, .overlaps_messages = true},
                   12);
}

TEST(PartitionChain, EqualsBruteForceWithMessagesAdded) {
  ExpectBestOfEach({.has_messages = true}, 3);
}

TEST(PartitionChain, EqualsBruteForceWithMessagesOverlapped) {
  ExpectBestOfEach({.has_messages = true, .overlaps_messages = true}, 4);
}

TEST(PartitionChain, EqualsBruteForceWithSpeeds) { ExpectBestOfEach({.has_speeds = true}, 5); }

TEST(PartitionChain, EqualsBruteForceUnderMemoryThatDependsOnTheStage) {
  ExpectBestOfEach({.has_memory = true}, 6);
}

TEST(PartitionChain, EqualsBruteForceWithAnyExtraTime) { ExpectBestOfEach({.has_extra = true}, 7); }

TEST(PartitionChain, EqualsBruteForceWithEverythingAdded) {
  ExpectBestOfEach({.has_speeds = true,
                    .has_start = true,
                    .has_messages = true,
                    .has_memory = true,
                    .has_extra = true},
                   8);
}

TEST(PartitionChain, EqualsBruteForceWithEverythingOverlapped) {
  ExpectBestOfEach({.has_speeds = true,
                    .has_start = true,
                    .has_messages = true,
                    .overlaps_messages = true,
                    .has_memory = true,
                    .has_extra = true},
                   9);
}

// Sums in double differ from the exact ones by rounding, and so may the better of two cuts.
TEST(PartitionChain, EqualsBruteForceUpToRoundingWithTimesThatAreNotWhole) {
  std::mt19937 random(10);
  for (int i = 0; i < kProblems && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    ChainProblem problem = RandomProblem(random, {.has_speeds = true,
                                                  .has_messages = true,
                                                  .overlaps_messages = random() % 2 == 0,
                                                  .has_memory = true});
    std::uniform_real_distribution<double> factor(0.1, 10.0);
    for (double& ns : problem.layer_ns) ns *= factor(random);
    for (double& speed : problem.speeds) speed *= factor(random);
    const std::optional<Merit> best = BruteForce(problem);
    const auto cut = PartitionChain(problem);
    ASSERT_EQ(cut.ok(), best.has_value());
    if (!best) continue;
    const double least = std::get<0>(*best);
    EXPECT_NEAR(cut->bottleneck_ns, least, 1e-12 * least);
    EXPECT_NEAR(SlowestNs(problem, cut->first_layer), least, 1e-12 * least);
  }
}

ChainProblem LargeProblem(std::mt19937& random, size_t layers, int stages) {
  ChainProblem problem = {.stages = stages};
  const double per_stage = static_cast<double>(layers) / stages;
  for (size_t i = 0; i < layers; ++i) problem.layer_ns.push_back(500 + random() % 1000);
  problem.layer_bytes = RandomCounts(random, layers, 2000);
  problem.layer_stash_bytes = RandomCounts(random, layers, 20);
  for (int stage = 0; stage < stages; ++stage) {
    problem.speeds.push_back(0.5 + 0.001 * (random() % 1500));
    problem.in_flight.push_back(stages - stage);
    // Allows 1.5 times the share of a device of this speed.
    problem.budget_bytes.push_back(static_cast<int64_t>(
        1.5 * per_stage * (1000 + 10.0 * (stages - stage)) * std::max(0.8, problem.speeds[stage])));
  }
  return problem;
}

// Returns true unless it is impossible: each stage takes everything that it can, possibly nothing.
// If even that leaves layers over, no cut has a slowest stage of `limit_ns`.
bool CouldBeWithin(const ChainProblem& problem, double limit_ns) {
  size_t next = 0;
  for (int stage = 0; stage < problem.stages; ++stage) {
    double ns = 0;
    int64_t bytes = 0;
    for (; next < problem.layer_ns.size(); ++next) {
      ns += problem.layer_ns[next] / problem.speeds[stage];
      bytes +=
          problem.layer_bytes[next] + problem.in_flight[stage] * problem.layer_stash_bytes[next];
      if (ns > limit_ns || bytes > problem.budget_bytes[stage]) break;
    }
  }
  return next == problem.layer_ns.size();
}

TEST(PartitionChain, NothingIsFasterForTenThousandLayersOnAThousandDevices) {
  std::mt19937 random(11);
  const ChainProblem problem = LargeProblem(random, 10'000, 1024);
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  ASSERT_EQ(cut.first_layer.size(), 1024u);
  EXPECT_EQ(cut.first_layer[0], 0);
  EXPECT_LT(cut.first_layer[1023], 10'000);
  EXPECT_TRUE(std::is_sorted(cut.first_layer.begin(), cut.first_layer.end(),
                             [](int a, int b) { return a <= b; }));
  // Also checks that every stage is within its memory: its time would be infinite.
  EXPECT_NEAR(SlowestNs(problem, cut.first_layer), cut.bottleneck_ns, 1e-9 * cut.bottleneck_ns);
  EXPECT_TRUE(CouldBeWithin(problem, cut.bottleneck_ns * (1 + 1e-9)));
  EXPECT_FALSE(CouldBeWithin(problem, cut.bottleneck_ns * (1 - 1e-9)));
}

// Uses simple recursions over (stage, layer): `join` combines the value of the previous stages with
// the time of a stage, and the least is kept. Times above `limit_ns` are left out.
double LeastOfAllCuts(const ChainProblem& problem, double limit_ns,
                      const std::function<double(double, double)>& join) {
  const int layers = static_cast<int>(problem.layer_ns.size());
  std::vector<double> least(static_cast<size_t>(layers) + 1, kForbidden);
  least[0] = 0;
  for (int stage = 0; stage < problem.stages; ++stage) {
    std::vector<double> next(least.size(), kForbidden);
    for (int end = stage + 1; end <= layers - (problem.stages - stage - 1); ++end) {
      for (int begin = stage; begin < end; ++begin) {
        if (least[begin] >= next[end]) continue;
        const double ns = StageNs(problem, begin, end - 1, stage);
        if (ns <= limit_ns) next[end] = std::min(next[end], join(least[begin], ns));
      }
    }
    least = next;
  }
  return least[layers];
}

double SlowestOfBest(const ChainProblem& problem) {
  return LeastOfAllCuts(problem, std::numeric_limits<double>::max(),
                        [](double before, double ns) { return std::max(before, ns); });
}

double SumOfSquares(const std::vector<double>& times) {
  return std::inner_product(times.begin(), times.end(), times.begin(), 0.0);
}

TEST(PartitionChain, EqualsThePlainRecursionsOnProblemsOfEveryKind) {
  std::mt19937 random(13);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(i);
    const auto coin = [&] { return random() % 2 == 0; };
    const ChainProblem problem = RandomProblem(random,
                                               {.has_speeds = coin(),
                                                .has_start = coin(),
                                                .has_messages = coin(),
                                                .overlaps_messages = coin(),
                                                .has_memory = random() % 4 == 0,
                                                .has_extra = coin()},
                                               40);
    const double slowest = SlowestOfBest(problem);
    const auto cut = PartitionChain(problem);
    if (slowest == kForbidden) {
      ASSERT_THAT(cut, StatusIs(absl::StatusCode::kResourceExhausted));
      continue;
    }
    ASSERT_OK(cut);
    ASSERT_EQ(cut->bottleneck_ns, slowest);
    ASSERT_EQ(SlowestNs(problem, cut->first_layer), slowest);
    ASSERT_EQ(SumOfSquares(StageTimes(problem, cut->first_layer)),
              LeastOfAllCuts(problem, slowest,
                             [](double before, double ns) { return before + ns * ns; }));
  }
}

TEST(PartitionChain, EqualsThePlainRecursionOnLargerProblemsWithMessages) {
  for (const bool overlaps : {false, true}) {
    SCOPED_TRACE(overlaps);
    std::mt19937 random(12);
    ChainProblem problem = LargeProblem(random, 300, 30);
    problem.overlaps_messages = overlaps;
    problem.micro_batches = 4;
    problem.boundary_bytes = RandomCounts(random, 300, 1500);
    for (int i = 0; i < 29; ++i) {
      problem.links.push_back({static_cast<int64_t>(random() % 50), 1e9 + random() % 1000 * 1e6});
    }
    ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
    EXPECT_NEAR(cut.bottleneck_ns, SlowestOfBest(problem), 1e-12 * cut.bottleneck_ns);
    EXPECT_NEAR(SlowestNs(problem, cut.first_layer), cut.bottleneck_ns, 1e-12 * cut.bottleneck_ns);
  }
}

}  // namespace
}  // namespace stagecoach::partition
