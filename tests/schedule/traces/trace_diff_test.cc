#include "schedule/traces/trace_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "schedule/generators/generators.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/traces/traces.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Sends kDiffedSends[] = {Sends::kBuffered, Sends::kRendezvous, Sends::kBlocking};

// Returns the causes and their ns, except those of 0.
std::vector<std::pair<std::string, int64_t>> Nonzero(const TimeSplit& split) {
  std::vector<std::pair<std::string, int64_t>> causes;
  for (int c = 0; c < kNumCauses; ++c) {
    const Cause cause = static_cast<Cause>(c);
    if (split[cause] != 0) causes.emplace_back(CauseName(cause), split[cause]);
  }
  return causes;
}

using Causes = std::vector<std::pair<std::string, int64_t>>;

TEST(SplitByCause, DividesARankAsByHand) {
  const Trace trace = TraceFromText({0, 1}, 2,
                                    {"F0.0@3-10 SEND_F0.0@10-25 F0.1@10-20 SEND_F0.1@21:25-40 "
                                     "BW0.0@30:33-53 W0.1@54:56-61 REDUCE0@61-63 STEP0@61:63-70",
                                     "RECV_F1.0@0-25 F1.0@1:25-30 BW1.0@30-50 SEND_B1.0@50-90"});
  const std::vector<TimeSplit> splits = SplitByCause(trace);
  EXPECT_EQ(Nonzero(splits[0]), (Causes{{"F", 17},
                                        {"W", 5},
                                        {"BW", 20},
                                        {"step", 9},
                                        {"gradients", 3},
                                        // 4 for the lane, 5 until the rank continues after posting.
                                        {"sends", 9},
                                        // 3 + 1 + 1 + 2 (no input makes a W wait).
                                        {"executor", 7},
                                        {"tail", 20}}));
  EXPECT_EQ(Nonzero(splits[1]),
            (Causes{{"F", 5}, {"BW", 20}, {"activations", 24}, {"sends", 40}, {"executor", 1}}));
}

// A REDUCE runs concurrently: a pass behind it waits only for its own input, and only STEP waits
// for the REDUCE.
TEST(SplitByCause, LetsOnlyUpdatesWaitForReductions) {
  const Trace trace = TraceFromText(
      {0, 1}, 1,
      {"F0.0@0-10 SEND_F0.0@10-12 RECV_B0.0@10-30 BW0.0@10:30-40 REDUCE0@40-60 STEP0@40:60-65",
       "RECV_F1.0@0-12 F1.0@0:12-20 BW1.0@20-30 REDUCE1@30-80 SEND_B1.0@30-30 STEP1@30:80-85"});
  const std::vector<TimeSplit> splits = SplitByCause(trace);
  EXPECT_EQ(Nonzero(splits[0]),
            (Causes{{"F", 10}, {"BW", 10}, {"step", 25}, {"gradients", 20}, {"tail", 20}}));
  const Trace late = TraceFromText({0, 0}, 1,
                                   {"F0.0@0-10 F1.0@10-20 BW1.0@20-30 REDUCE1@30-50 BW0.0@30:35-45 "
                                    "REDUCE0@45-60 STEP0@45:60-65 STEP1@65-70"});
  EXPECT_EQ(Nonzero(SplitByCause(late)[0]),
            (Causes{{"F", 20}, {"BW", 20}, {"step", 25}, {"gradients", 5}}));
}

// A device that cannot overlap them performs them in turn: the pair as a whole takes its time.
TEST(DiffTraces, BlamesNeitherHalfOfAPairThatWasPerformedInTurn) {
  const Trace simulated = TraceFromText({0, 0}, 2, {"F0.1+@0-30 BW1.0@0-30 W0.0@30-40"});
  const Trace measured = TraceFromText({0, 0}, 2, {"F0.1+@0-12 BW1.0@12-30 W0.0@30-40"});
  EXPECT_TRUE(DiffTraces(simulated, measured).value().most.empty());
}

TEST(SplitByCause, CountsTimeUnderAnOverlappedPairOnce) {
  const std::vector<TimeSplit> splits =
      SplitByCause(TraceFromText({0, 0}, 2, {"F0.1+@0:4-10 BW1.0@0:4-10 W0.0@10-12"}));
  EXPECT_EQ(Nonzero(splits[0]), (Causes{{"W", 2}, {"F+B", 6}, {"activations", 4}}));
}

TEST(SplitByCause, KnowsAnOverlappedPairThatRanInTurn) {
  const std::vector<TimeSplit> splits =
      SplitByCause(TraceFromText({0, 0}, 2, {"F0.1+@0-10 BW1.0@10:12-30"}));
  EXPECT_EQ(Nonzero(splits[0]), (Causes{{"F+B", 28}, {"gradients", 2}}));
}

TEST(SplitByCause, IsNeverNegativeAndSumsToTheStep) {
  for (const std::string& name : GeneratorNames()) {
    for (const Sends sends : kDiffedSends) {
      for (uint64_t seed = 0; seed < 5; ++seed) {
        const Trace trace = DisturbedTrace(name, 4, 8, sends, seed);
        for (const TimeSplit& split : SplitByCause(trace)) {
          EXPECT_EQ(split.sum_ns(), trace.step_ns) << name;
          for (int c = 0; c < kNumCauses; ++c) EXPECT_GE(split[static_cast<Cause>(c)], 0) << name;
        }
      }
    }
  }
}

TEST(SplitByCause, OfASimulationHasNoExecutor) {
  for (const std::string& name : GeneratorNames()) {
    for (const Sends sends : kDiffedSends) {
      for (const TimeSplit& split : SplitByCause(SimulatedTrace(name, 4, 8, sends))) {
        EXPECT_EQ(split[Cause::kExecutor], 0) << name;
      }
    }
  }
}

TEST(SplitByCause, CountsAsComputeWhatIsPerformed) {
  const Trace trace = SimulatedTrace("zb-h2", 4, 8, Sends::kBlocking);
  const std::vector<TimeSplit> splits = SplitByCause(trace);
  for (size_t rank = 0; rank < splits.size(); ++rank) {
    int64_t work_ns = 0;
    for (const TimedAction& timed : trace.actions[rank]) {
      if (!IsTransfer(timed.action.op)) work_ns += timed.end_ns - timed.start_ns;
    }
    EXPECT_EQ(splits[rank].compute_ns(), work_ns);
  }
}

TEST(RankTimesOf, AreThoseOfTheRankByHand) {
  const Trace trace = TraceFromText(
      {0, 1}, 1,
      {"F0.0@0-10000 SEND_F0.0@10000-12000 RECV_B0.0@10000-40000 BW0.0@10000:40000-50000 "
       "STEP0@50000-51000",
       "RECV_F1.0@0-12000 F1.0@500:12000-22000 BW1.0@22000-38000 SEND_B1.0@38000-40000"});
  const TimeTable table = RankTimesOf(trace);
  EXPECT_EQ(table.unit, std::string("us"));
  EXPECT_THAT(table.columns, ElementsAre("rank", "F", "BW", "step", "busy", "messages", "executor",
                                         "tail", "idle"));
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_THAT(table.rows[0], ElementsAre("0", "10.000", "10.000", "1.000", "21.000", "30.000",
                                         "0.000", "0.000", "58.82 %"));
  EXPECT_THAT(table.rows[1], ElementsAre("1", "10.000", "16.000", "0.000", "26.000", "13.500",
                                         "0.500", "11.000", "49.02 %"));
  EXPECT_THAT(ToText(table), HasSubstr("rank       F      BW"));
}

TEST(RankTimesOf, AreIdleAsTheSimulationSays) {
  for (const std::string& name : GeneratorNames()) {
    const Schedule lowered =
        Lower(Generate(name, {.ranks = 4, .micro_batches = 8}).value()).value();
    Costs costs = UniformCosts(lowered.rank_of_stage, {90'000, 80'000, 70'000}, 1'000);
    costs.overlap_share = 0.8;
    const Simulation simulation =
        Simulate(lowered, costs, {.sends = Sends::kRendezvous, .keep_trace = true}).value();
    const TimeTable table = RankTimesOf(simulation.trace);
    for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
      const double share = static_cast<double>(simulation.ranks[rank].idle_ns()) /
                           static_cast<double>(simulation.step_ns);
      EXPECT_EQ(table.rows[rank].back(), absl::StrFormat("%.2f %%", 100 * share)) << name;
    }
  }
}

TEST(RankTimesOf, AStepWithoutTimeHasNoShare) {
  EXPECT_EQ(RankTimesOf(TraceFromText({0}, 1, {"F0.0@0-0"})).rows[0].back(), "-");
}

TEST(TraceDiff, OfATraceWithItselfIsNothing) {
  const Trace trace = SimulatedTrace("zb-v", 4, 8, Sends::kRendezvous);
  ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(trace, trace));
  EXPECT_EQ(diff.difference_ns(), 0);
  EXPECT_EQ(diff.simulated, diff.measured);
  for (const TimeSplit& rank : diff.ranks) EXPECT_EQ(rank, TimeSplit());
  EXPECT_TRUE(diff.most.empty());
  EXPECT_FALSE(diff.parted.has_value());
}

// Two ranks, 100 ns; and the same with the first F taking 6 ns longer, so that all later actions
// move.
Trace Planned() {
  return TraceFromText({0, 1}, 1,
                       {"F0.0@0-20 SEND_F0.0@20-30 RECV_B0.0@20-70 BW0.0@20:70-100",
                        "RECV_F1.0@0-30 F1.0@0:30-40 BW1.0@40-60 SEND_B1.0@60-70"});
}
Trace Slower() {
  return TraceFromText({0, 1}, 1,
                       {"F0.0@0-26 SEND_F0.0@26-36 RECV_B0.0@26-76 BW0.0@26:76-106",
                        "RECV_F1.0@0-36 F1.0@0:36-46 BW1.0@46-66 SEND_B1.0@66-76"});
}

TEST(TraceDiff, FindsTheActionThatTookLonger) {
  ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(Planned(), Slower()));
  EXPECT_EQ(diff.simulated_step_ns, 100);
  EXPECT_EQ(diff.measured_step_ns, 106);
  EXPECT_EQ(Nonzero(diff.ranks[0]), (Causes{{"F", 6}}));
  EXPECT_EQ(Nonzero(diff.ranks[1]), (Causes{{"activations", 6}}));
  EXPECT_EQ(diff.difference_ns(Cause::kForward), 3);
  EXPECT_EQ(diff.difference_ns(Cause::kActivations), 3);
  ASSERT_EQ(diff.most.size(), 2U);
  EXPECT_EQ(diff.most[0].rank, Rank(0));
  EXPECT_EQ(diff.most[0].position, 0U);
  EXPECT_EQ(diff.most[0].cause, Cause::kForward);
  EXPECT_EQ(diff.most[0].difference_ns(), 6);
  EXPECT_EQ(diff.most[1].action,
            (Action{.op = Op::kForward, .stage = StageId(1), .micro_batch = MicroBatch(0)}));
  EXPECT_EQ(diff.most[1].cause, Cause::kActivations);
}

TEST(TraceDiff, FindsTheFirstActionThatStartsOff) {
  ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(Planned(), Slower()));
  ASSERT_TRUE(diff.parted.has_value());
  EXPECT_EQ(diff.parted->rank, Rank(0));
  EXPECT_EQ(diff.parted->position, 1U);
  EXPECT_EQ(diff.parted->simulated_ns, 20);
  EXPECT_EQ(diff.parted->measured_ns, 26);
}

TEST(TraceDiff, AllowsFivePercentOfTheStep) {
  const Trace plan = TraceFromText({0}, 2, {"F0.0@0-10 F0.1@50-100"});
  for (const int64_t late_ns : {-6, -5, 0, 5, 6}) {
    Trace run = plan;
    run.actions[0][1].start_ns += late_ns;
    run.actions[0][1].reached_ns += late_ns;
    ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(plan, run));
    EXPECT_EQ(diff.parted.has_value(), std::abs(late_ns) > 5) << late_ns;
  }
}

TEST(TraceDiff, SplitsTheDifferenceExactly) {
  for (const std::string& name : GeneratorNames()) {
    for (const Sends sends : kDiffedSends) {
      const Trace plan = SimulatedTrace(name, 3, 6, sends);
      for (uint64_t seed = 0; seed < 8; ++seed) {
        const Trace run = DisturbedTrace(name, 3, 6, sends, seed);
        ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(plan, run, 1 << 20));
        EXPECT_EQ(diff.simulated.sum_ns(), plan.step_ns);
        EXPECT_EQ(diff.measured.sum_ns(), run.step_ns);
        std::vector<TimeSplit> sums(diff.ranks.size());
        for (const DelayCause& one : diff.most) {
          sums[static_cast<size_t>(one.rank.value())][one.cause] += one.difference_ns();
        }
        for (size_t rank = 0; rank < sums.size(); ++rank) {
          EXPECT_EQ(diff.ranks[rank].sum_ns(), run.step_ns - plan.step_ns) << name;
          sums[rank][Cause::kTail] = diff.ranks[rank][Cause::kTail];  // belongs to no action
          EXPECT_EQ(sums[rank], diff.ranks[rank]) << name;
        }
      }
    }
  }
}

TEST(TraceDiff, MeansAreWithinOneNanosecondOfTheRanks) {
  const Trace plan = SimulatedTrace("1f1b", 3, 6, Sends::kRendezvous);
  const Trace run = DisturbedTrace("1f1b", 3, 6, Sends::kRendezvous, 4);
  ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(plan, run));
  for (int c = 0; c < kNumCauses; ++c) {
    const Cause cause = static_cast<Cause>(c);
    double mean = 0;
    for (const TimeSplit& rank : SplitByCause(run)) mean += static_cast<double>(rank[cause]) / 3;
    EXPECT_NEAR(static_cast<double>(diff.measured[cause]), mean, 1.0);
  }
}

TEST(TraceDiff, KeepsTheLargestContributions) {
  const Trace plan = SimulatedTrace("zb-h1", 4, 8, Sends::kRendezvous);
  const Trace run = DisturbedTrace("zb-h1", 4, 8, Sends::kRendezvous, 9);
  ASSERT_OK_AND_ASSIGN(const TraceDiff all, DiffTraces(plan, run, 1 << 20));
  ASSERT_OK_AND_ASSIGN(const TraceDiff few, DiffTraces(plan, run, 7));
  ASSERT_GT(all.most.size(), 7U);
  ASSERT_EQ(few.most.size(), 7U);
  for (size_t i = 0; i < few.most.size(); ++i) {
    EXPECT_EQ(few.most[i].difference_ns(), all.most[i].difference_ns());
  }
  EXPECT_TRUE(std::is_sorted(all.most.begin(), all.most.end(),
                             [](const DelayCause& a, const DelayCause& b) {
                               return std::abs(a.difference_ns()) > std::abs(b.difference_ns());
                             }));
}

TEST(TraceDiff, RefusesTracesOfDifferentSchedules) {
  const Trace plan = TraceFromText({0, 1}, 2, {"F0.0@0-1 F0.1@1-2", "F1.0@1-2 F1.1@2-3"});
  const auto expect = [&plan](const Trace& run, const char* message) {
    EXPECT_THAT(DiffTraces(plan, run), IsRefused(message));
  };
  expect(TraceFromText({0, 1}, 2, {"F0.0@0-1 F0.1@1-2", "F1.1@1-2 F1.0@2-3"}),
         "rank 1, position 0: stage 1 F micro-batch 0 simulated, stage 1 F micro-batch 1 measured");
  expect(TraceFromText({0, 1}, 2, {"F0.0@0-1", "F1.1@1-2 F1.0@2-3"}),
         "rank 0, position 1: stage 0 F micro-batch 1 simulated, the end of the list measured");
  expect(TraceFromText({0, 1}, 2, {"F0.0@0-1 F0.1@1-2", "F1.0@1-2 F1.1@2-3 STEP1@3-4"}),
         "rank 1, position 2: the end of the list simulated, stage 1 STEP measured");
  expect(TraceFromText({0, 1}, 3, {"F0.0@0-1 F0.1@1-2", "F1.0@1-2 F1.1@2-3"}),
         "2 micro-batches simulated, 3 measured");
  expect(TraceFromText({0, 1, 1}, 2, {"F0.0@0-1 F0.1@1-2", "F1.0@1-2 F1.1@2-3"}),
         "2 stages on 2 ranks simulated, 3 on 2 measured");
}

TEST(TraceDiff, RefusesAMalformedTrace) {
  Trace run = Planned();
  run.actions[0][0].end_ns = -1;
  EXPECT_THAT(DiffTraces(Planned(), run), IsRefused("measured: trace: rank 0"));
  EXPECT_THAT(DiffTraces(run, Planned()), IsRefused("simulated: trace: rank 0"));
}

TEST(TraceDiffText, SaysItAsByHand) {
  ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(Planned(), Slower()));
  EXPECT_EQ(ToText(diff),
            R"(step: 100 ns simulated, 106 ns measured: +6 ns (+6.0 %)

What a rank spends the step on (ns, mean over the ranks)
cause        simulated  measured  difference
-----------  ---------  --------  ----------
F                   15        18          +3
BW                  25        25           0
activations         15        18          +3
gradients           25        25           0
sends                5         5           0
tail                15        15           0
sum                100       106          +6

Difference by rank (ns)
rank  compute  activations  gradients  sends  executor  tail  sum
----  -------  -----------  ---------  -----  --------  ----  ---
   0       +6            0          0      0         0     0   +6
   1        0           +6          0      0         0     0   +6

Difference in compute by operation (ns)
rank   F  BW  compute
----  --  --  -------
   0  +6   0       +6
   1   0   0        0

Largest differences of single actions (ns)
rank action                  cause       started simulated measured difference
---- ----------------------- ----------- ------- --------- -------- ----------
   0 stage 0 F micro-batch 0 F                 0        20       26         +6
   1 stage 1 F micro-batch 0 activations      36        30       36         +6

First to start off by more than 5 % of the step: stage 0 SEND_F micro-batch 0 on rank 0,
at 26 ns instead of 20 ns (position 1).
)");
}

TEST(TraceDiffText, IsAtMostAHundredColumnsWide) {
  for (const std::string& name : GeneratorNames()) {
    const Trace plan = SimulatedTrace(name, 16, 32, Sends::kRendezvous);
    Trace run = DisturbedTrace(name, 16, 32, Sends::kRendezvous, 3);
    run.step_ns = 99'999'999'999'999;
    ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(plan, run));
    for (const auto line : absl::StrSplit(ToText(diff), '\n')) EXPECT_LE(line.size(), 100U) << line;
  }
}

TEST(TraceDiffText, SaysWhenNothingStartsOff) {
  ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(Planned(), Planned()));
  EXPECT_THAT(ToText(diff), HasSubstr("within 5 % of the step"));
  EXPECT_THAT(ToText(diff), Not(HasSubstr("Largest differences")));
}

TEST(TraceDiffJson, HoldsAllOfIt) {
  ASSERT_OK_AND_ASSIGN(const TraceDiff diff, DiffTraces(Planned(), Slower(), 1));
  const nlohmann::ordered_json document = ToJson(diff);
  EXPECT_EQ(document["simulated_step_ns"], 100);
  EXPECT_EQ(document["measured_step_ns"], 106);
  EXPECT_EQ(document["difference_ns"], 6);
  EXPECT_EQ(document["causes"].size(), static_cast<size_t>(kNumCauses));
  EXPECT_EQ(document["causes"]["F"].dump(),
            R"({"simulated_ns":15,"measured_ns":18,"difference_ns":3})");
  EXPECT_EQ(document["ranks"].size(), 2U);
  EXPECT_EQ(document["ranks"][1]["activations"], 6);
  EXPECT_EQ(document["largest"].dump(),
            R"([{"rank":0,"position":0,"action":"F0.0","cause":"F","started_ns":0,)"
            R"("simulated_ns":20,"measured_ns":26,"difference_ns":6}])");
  EXPECT_EQ(document["parted"].dump(),
            R"({"rank":0,"position":1,"action":"SEND_F0.0","simulated_start_ns":20,)"
            R"("measured_start_ns":26})");
  ASSERT_OK_AND_ASSIGN(const TraceDiff none, DiffTraces(Planned(), Planned()));
  EXPECT_TRUE(ToJson(none)["parted"].is_null());
}

}  // namespace
}  // namespace stagecoach::schedule
