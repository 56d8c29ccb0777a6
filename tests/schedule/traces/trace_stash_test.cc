#include "schedule/traces/trace_stash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "schedule/generators/generators.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"
#include "tests/schedule/traces/traces.h"

namespace stagecoach::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<std::pair<int64_t, double>> LevelsOf(const RankStash& stash) {
  std::vector<std::pair<int64_t, double>> levels;
  for (const RankStash::Level& level : stash.levels) {
    levels.emplace_back(level.from_ns, level.amount);
  }
  return levels;
}

// Simulates passes whose times differ from stage to stage, and from each other.
Simulation SimulationOf(const Schedule& compute, bool with_sizes) {
  const Schedule lowered = Lower(compute).value();
  Costs costs = UniformCosts(compute.rank_of_stage, {60'000, 50'000, 40'000}, 700);
  if (with_sizes) costs.memory = TypicalStages(lowered);
  return Simulate(lowered, costs, {.keep_trace = true}).value();
}

TEST(StashOf, IsKeptFromTheStartOfFToTheEndOfTheLastThatReadsIt) {
  const Trace trace =
      TraceFromText({0}, 2, {"F0.0@5-10 F0.1@12-20 B0.0@20-30 W0.0@30-35 BW0.1@40-50 STEP0@50-60"});
  const TraceStash stash = StashOf(trace, std::vector<StageStash>{{.forward = 1, .weight = 0.5}});
  EXPECT_FALSE(stash.in_bytes);
  ASSERT_EQ(stash.ranks.size(), 1U);
  EXPECT_THAT(LevelsOf(stash.ranks[0]),
              ElementsAre(Pair(5, 1), Pair(12, 2), Pair(30, 1.5), Pair(35, 1), Pair(50, 0)));
  EXPECT_EQ(stash.ranks[0].peak, 2);
  EXPECT_EQ(stash.ranks[0].peak_ns, 12);
}

TEST(StashOf, OfAPairThatIsPerformedTogetherHasBothMeanwhile) {
  const Trace trace = TraceFromText({0}, 2, {"F0.0@0-4 F0.1+@4-10 BW0.0@4-12 BW0.1@12-20"});
  const TraceStash stash = StashOf(trace, std::vector<StageStash>{{.forward = 1, .weight = 0}});
  EXPECT_THAT(LevelsOf(stash.ranks[0]),
              ElementsAre(Pair(0, 1), Pair(4, 2), Pair(12, 1), Pair(20, 0)));
}

TEST(StashOf, HasThePeakOfPassesThatTakeNoTime) {
  const Trace trace = TraceFromText({0}, 1, {"F0.0@7-7 BW0.0@7-7 STEP0@7-9"});
  const TraceStash stash = StashOf(trace, std::vector<StageStash>{{.forward = 1, .weight = 0}});
  EXPECT_THAT(stash.ranks[0].levels, IsEmpty());
  EXPECT_EQ(stash.ranks[0].peak, 1);
  EXPECT_EQ(stash.ranks[0].peak_ns, 7);
}

TEST(StashOf, PeaksAtWhatPeakStashSays) {
  for (const Generator& generator : Generators()) {
    const Schedule compute = generator.generate({3, 6}).value();
    const std::vector<StageStash> unit = UnitStash(compute.rank_of_stage, 0.5);
    const std::vector<double> peaks = PeakStash(compute, unit);
    const TraceStash stash = StashOf(SimulationOf(compute, false).trace, unit);
    ASSERT_EQ(stash.ranks.size(), peaks.size()) << generator.name;
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      EXPECT_EQ(stash.ranks[rank].peak, peaks[rank]) << generator.name << " rank " << rank;
      EXPECT_NEAR(stash.ranks[rank].levels.back().amount, 0, 1e-12);
    }
  }
}

// Equal to the byte, also if the peak is within a B.
TEST(StashOf, OfATraceWithSizesPeaksAtWhatTheSimulationSays) {
  for (const Generator& generator : Generators()) {
    const Simulation simulation = SimulationOf(generator.generate({3, 6}).value(), true);
    const TraceStash stash = StashOf(simulation.trace, {});
    EXPECT_TRUE(stash.in_bytes);
    for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
      const RankStash& own = stash.ranks[rank];
      EXPECT_EQ(own.peak, simulation.ranks[rank].peak_stash_bytes) << generator.name << rank;
      EXPECT_EQ(own.levels.back().amount, 0);
      const auto at_peak =
          std::find_if(own.levels.begin(), own.levels.end(),
                       [&](const auto& level) { return level.amount == own.peak; });
      ASSERT_NE(at_peak, own.levels.end());
      EXPECT_EQ(at_peak->from_ns, own.peak_ns);
    }
  }
}

TEST(StashOf, IsEmptyWhereNothingIsKnownOrKept) {
  const Trace trains = SimulationOf(OneFOneB({2, 4}).value(), false).trace;
  EXPECT_THAT(StashOf(trains, {}).ranks, IsEmpty());
  const Schedule predicts = ForwardOnly({Rank(0), Rank(1)}, 2, 4).value();
  EXPECT_THAT(
      StashOf(SimulationOf(predicts, true).trace, UnitStash(predicts.rank_of_stage, 0.5)).ranks,
      IsEmpty());
}

}  // namespace
}  // namespace stagecoach::schedule
