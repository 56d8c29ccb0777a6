#include "partition/exact/chain.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/cost/profile.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/simulate/costs.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(PartitionChain, CutsWhereTheSlowestStageIsFastest) {
  struct Row {
    std::vector<double> layer_ns;
    int stages;
    std::vector<int> first_layer;
    double bottleneck_ns;
  };
  const double most = std::numeric_limits<double>::max();
  const Row rows[] = {
      {{3, 1, 2}, 1, {0}, 6},
      {{9, 1, 1, 1, 1, 1, 1}, 3, {0, 1, 4}, 9},  // and the other stages are even
      {{1, 1, 1, 1}, 3, {0, 1, 2}, 2},           // the lexicographically first of three
      {{0, 0, 0, 0}, 2, {0, 1}, 0},
      {{most, most, most}, 3, {0, 1, 2}, most},
  };
  for (const Row& row : rows) {
    ASSERT_OK_AND_ASSIGN(const ChainCut cut,
                         PartitionChain({.layer_ns = row.layer_ns, .stages = row.stages}));
    EXPECT_EQ(cut.first_layer, row.first_layer);
    EXPECT_EQ(cut.bottleneck_ns, row.bottleneck_ns);
  }
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

TEST(PartitionChain, AcceptsASlowerCutWhereTheFastestDoesNotFit) {
  ChainProblem problem = {.layer_ns = {1, 1, 1, 1}, .stages = 2};
  problem.extra_ns = [](int first, int last, int stage) {
    return stage > 0 || last - first < 1 ? 0.0 : kInfinity;
  };
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 1));
  EXPECT_EQ(cut.bottleneck_ns, 3);
}

TEST(PartitionChain, ReportsThatNothingFits) {
  ChainProblem problem = {.layer_ns = {1, 1}, .stages = 2};
  problem.extra_ns = [](int, int, int stage) { return stage == 0 ? 0.0 : kInfinity; };
  EXPECT_THAT(PartitionChain(problem), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(PartitionChain, ReportsThatNothingFitsTheMemory) {
  ChainProblem problem = {.layer_ns = {1, 1, 1}, .stages = 2};
  problem.layer_bytes = {4, 4, 4};
  problem.budget_bytes = {7, 7};
  EXPECT_THAT(PartitionChain(problem),
              StatusIs(absl::StatusCode::kResourceExhausted, "3 layers into 2 stages"));
  problem.budget_bytes = {8, 4};
  EXPECT_OK(PartitionChain(problem));
  problem.budget_bytes = {8, -1};
  EXPECT_THAT(PartitionChain(problem), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(PartitionChain, CountsTheStashOfEveryMicroBatchInFlight) {
  ChainProblem problem = {.layer_ns = {1, 1, 1, 1}, .stages = 2};
  problem.layer_bytes = {1, 1, 1, 1};
  problem.layer_stash_bytes = {2, 2, 2, 2};
  problem.in_flight = {2, 1};
  problem.budget_bytes = {9, 9};  // one layer of 1 + 2 * 2, or three of 1 + 2
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 1));
}

TEST(PartitionChain, PutsTheCutWhereLittlePasses) {
  ChainProblem problem = {.layer_ns = {5, 5, 5, 5}, .stages = 2, .micro_batches = 3};
  problem.boundary_bytes = {0, 1, 9, 1};
  problem.links = {{.latency_ns = 1, .bytes_per_second = 1e9}};
  ASSERT_OK_AND_ASSIGN(const ChainCut added, PartitionChain(problem));
  EXPECT_THAT(added.first_layer, ElementsAre(0, 1));
  EXPECT_EQ(added.bottleneck_ns, 15 + 2 * 3 * (1 + 1));
  problem.overlaps_messages = true;
  ASSERT_OK_AND_ASSIGN(const ChainCut overlapped, PartitionChain(problem));
  EXPECT_THAT(overlapped.first_layer, ElementsAre(0, 1));
  EXPECT_EQ(overlapped.bottleneck_ns, 15);
}

TEST(PartitionChain, StagesOfEqualLayersTieAtAnySpeed) {
  const ChainProblem problem = {.layer_ns = std::vector<double>(40, 1.0 / 3.0),
                                .stages = 8,
                                .speeds = {.1, .1, .1, .1, .1, .1, .1, .1}};
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 5, 10, 15, 20, 25, 30, 35));
  EXPECT_DOUBLE_EQ(cut.bottleneck_ns, 5 * (1.0 / 3.0) / .1);
}

// A penalty may be far above all other times, and still the lower one is chosen.
TEST(PartitionChain, TakesAnExtraTimeThatDwarfsAllOthers) {
  ChainProblem problem = {.layer_ns = {1, 1, 1}, .stages = 2};
  problem.extra_ns = [](int, int last, int) { return last == 0 ? 1e200 : 1e100; };
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_THAT(cut.first_layer, ElementsAre(0, 2));
  EXPECT_DOUBLE_EQ(cut.bottleneck_ns, 1e100);
}

TEST(PartitionChain, AsksOnlyForRangesOfAPossibleCut) {
  ChainProblem problem = {.layer_ns = {1, 2, 3, 4, 5, 6, 7}, .stages = 3};
  problem.extra_ns = [](int first, int last, int stage) {
    EXPECT_LE(stage, first);
    EXPECT_LE(first, last);
    EXPECT_LE(last, 7 - 3 + stage);
    return (first + last + stage) % 3 == 0 ? kInfinity : 0.0;
  };
  EXPECT_OK(PartitionChain(problem));
}

// With more than kMaxEvened steps the answer is still one of the best: layers without time allow
// every cut.
TEST(PartitionChain, LeavesVeryManyEqualCutsUneven) {
  ChainProblem problem = {.layer_ns = std::vector<double>(8000, 0.0), .stages = 4};
  problem.layer_ns[0] = 5;
  ASSERT_OK_AND_ASSIGN(const ChainCut cut, PartitionChain(problem));
  EXPECT_EQ(cut.bottleneck_ns, 5);
  EXPECT_EQ(cut.first_layer[0], 0);
  EXPECT_LT(cut.first_layer[3], 8000);
  for (int stage = 1; stage < 4; ++stage) {
    EXPECT_LT(cut.first_layer[stage - 1], cut.first_layer[stage]);
  }
}

// Returns three layers in two stages, with a valid value in every field.
ChainProblem FullProblem() {
  ChainProblem problem = {.layer_ns = {1, 2, 3}, .stages = 2};
  problem.speeds = {1, 2};
  problem.start_ns = {0, 1, 2};
  problem.boundary_bytes = {0, 5, 6};
  problem.links = {{.latency_ns = 1, .bytes_per_second = 1e9}};
  problem.layer_bytes = {1, 1, 1};
  problem.layer_stash_bytes = {1, 1, 1};
  problem.in_flight = {2, 1};
  problem.budget_bytes = {100, 100};
  return problem;
}

TEST(PartitionChain, RefusesFieldsOfTheWrongLength) {
  const Refusal<Change<ChainProblem>> refusals[] = {
      {[](ChainProblem& p) { p.speeds.pop_back(); }, "speeds has 1 entries: expected 2"},
      {[](ChainProblem& p) { p.start_ns.push_back(0); }, "start_ns has 4 entries"},
      {[](ChainProblem& p) { p.boundary_bytes.pop_back(); }, "boundary_bytes has 2"},
      {[](ChainProblem& p) { p.links.push_back({}); }, "links has 2 entries: expected 1"},
      {[](ChainProblem& p) { p.layer_bytes.pop_back(); }, "layer_bytes has 2 entries"},
      {[](ChainProblem& p) { p.layer_stash_bytes.pop_back(); }, "layer_stash_bytes has 2"},
      {[](ChainProblem& p) { p.in_flight.push_back(1); }, "in_flight has 3 entries"},
      {[](ChainProblem& p) { p.budget_bytes.pop_back(); }, "budget_bytes has 1 entries"},
      {[](ChainProblem& p) { p.stages = 1; }, "speeds has 2 entries: expected 1"},
  };
  ExpectRefusedChanges(FullProblem(), PartitionChain, refusals);
}

TEST(PartitionChain, RefusesTimesThatAreNegativeOrNotFinite) {
  for (const double ns : {-1.0, std::nan(""), kInfinity}) {
    const Refusal<Change<ChainProblem>> refusals[] = {
        {[ns](ChainProblem& p) { p.layer_ns[1] = ns; }, "layer 1 takes"},
        {[ns](ChainProblem& p) { p.start_ns[2] = ns; }, "layer 2 starts after"},
    };
    ExpectRefusedChanges(FullProblem(), PartitionChain, refusals);
  }
}

TEST(PartitionChain, RefusesSpeedsOutOfRange) {
  ChainProblem problem = FullProblem();
  for (const double speed : {1e-100, 1e100}) {
    problem.speeds[1] = speed;
    EXPECT_FALSE(absl::IsInvalidArgument(PartitionChain(problem).status())) << speed;
  }
  for (const double speed : {-1.0, 0.0, 1e-101, 1e101, std::nan(""), kInfinity}) {
    problem.speeds[1] = speed;
    EXPECT_THAT(PartitionChain(problem), IsRefused("stage 1 has speed"));
  }
}

TEST(PartitionChain, RefusesLinksOutOfRange) {
  ChainProblem problem = FullProblem();
  for (const double speed : {-1.0, 0.5, std::nan(""), kInfinity}) {
    problem.links[0].bytes_per_second = speed;
    EXPECT_THAT(PartitionChain(problem), IsRefused("link 0"));
  }
}

// One more than the most is refused, and the most is not, whether or not it fits.
TEST(PartitionChain, RefusesCountsOutOfRange) {
  constexpr int64_t kMostBytes = schedule::kMaxSizeBytes, kMostInFlight = int64_t{1} << 32;
  struct Count {
    int64_t most;
    const char* message;
    std::function<void(ChainProblem&, int64_t)> set;
  };
  const Count counts[] = {
      {kMostBytes, "boundary_bytes of layer 1",
       [](ChainProblem& p, int64_t count) { p.boundary_bytes[1] = count; }},
      {kMostBytes, "layer_bytes of layer 1",
       [](ChainProblem& p, int64_t count) { p.layer_bytes[1] = count; }},
      {kMostBytes, "layer_stash_bytes of layer 2",
       [](ChainProblem& p, int64_t count) { p.layer_stash_bytes[2] = count; }},
      {kMostInFlight, "in_flight of stage 1",
       [](ChainProblem& p, int64_t count) { p.in_flight[1] = count; }},
      {kMostInFlight, "micro-batches",
       [](ChainProblem& p, int64_t count) { p.micro_batches = count; }},
      {schedule::kMaxTimeNs, "link 0",
       [](ChainProblem& p, int64_t count) { p.links[0].latency_ns = count; }},
  };
  for (const Count& count : counts) {
    ChainProblem problem = FullProblem();
    count.set(problem, count.most);
    EXPECT_FALSE(absl::IsInvalidArgument(PartitionChain(problem).status())) << count.message;
    for (const int64_t bad : {count.most + 1, std::numeric_limits<int64_t>::max(), int64_t{-1}}) {
      count.set(problem, bad);
      EXPECT_THAT(PartitionChain(problem), IsRefused(count.message));
    }
  }
  ChainProblem full_stage = FullProblem();
  full_stage.in_flight[0] = int64_t{1} << 30;
  full_stage.layer_stash_bytes[0] = int64_t{1} << 40;
  ChainProblem idle = FullProblem();
  idle.micro_batches = 0;
  ExpectRefusals({
      {PartitionChain(full_stage), "all layers on one stage"},
      {PartitionChain(idle), "0 micro-batches"},
      {PartitionChain({.layer_ns = {1, 1}, .stages = 3}), "2 layers into 3 stages"},
      {PartitionChain({.layer_ns = {1, 1}, .stages = 0}), "0 stages"},
      {PartitionChain({.layer_ns = std::vector<double>(kMaxLayers + 1, 1.0)}),
       "expected at most 100000"},
  });
  EXPECT_OK(PartitionChain({.layer_ns = std::vector<double>(kMaxLayers, 1.0)}));
}

}  // namespace
}  // namespace stagecoach::partition
