#include "schedule/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"
#include "tests/schedule/random_costs.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::HasSubstr;

constexpr Sends kAllSends[] = {Sends::kBuffered, Sends::kRendezvous, Sends::kBlocking,
                               Sends::kGrouped};

// Returns costs under which overlapping passes may take less than their sum, and updates may be
// within passes.
Costs OverlappingCosts(const Schedule& schedule, std::mt19937& random) {
  Costs costs = RandomCosts(schedule, 100, random);
  costs.overlap_share = 0.5 + 0.01 * static_cast<double>(DrawBelow(51, random));
  costs.updates_in_backward = DrawBelow(2, random) == 1;
  costs.collectives = {.norms_ns = DrawBelow(200, random), .results_ns = DrawBelow(50, random)};
  costs.host_link = {.link = {.latency_ns = DrawBelow(50, random), .bytes_per_second = 1e9},
                     .occupies_rank = DrawBelow(2, random) == 1};
  for (StageTimes& times : costs.stages) times.host_copy_bytes = DrawBelow(2000, random);
  return costs;
}

// Calls body(lowered, costs, sends) for every generator, all kinds of sends and random costs.
template <typename Body>
void ForManyRuns(Body body) {
  std::mt19937 random(11);
  for (int round = 0; round < 6; ++round) {
    for (const Generator& generator : Generators()) {
      const int p = 1 + round;
      const Schedule compute = generator.generate({p, 2 * p}).value();
      const Costs costs = OverlappingCosts(compute, random);
      for (const Sends sends : kAllSends) {
        const LoweringOptions options = {.reduce_gradients = round % 2 == 1,
                                         .exchange_norms = round % 3 > 0,
                                         .results = static_cast<ResultsPlace>(round % 3),
                                         .offload = round % 2 == 0 ? 0.7 : 0.0,
                                         .transfers = TransfersOf(sends)};
        const Schedule lowered = Lower(compute, options).value();
        SCOPED_TRACE(::testing::Message()
                     << generator.name << " p=" << p << " sends " << static_cast<int>(sends));
        body(lowered, costs, sends);
      }
    }
  }
}

TEST(Simulate, BusyAndTheCausesOfIdleTimeSumToTheStepExactly) {
  ForManyRuns([](const Schedule& lowered, const Costs& costs, Sends sends) {
    const Simulation simulation = Simulate(lowered, costs, {.sends = sends}).value();
    for (const RankTimes& rank : simulation.ranks) {
      EXPECT_EQ(rank.busy_ns + rank.dependency_ns + rank.imbalance_ns + rank.communication_ns,
                simulation.step_ns);
      EXPECT_GE(rank.dependency_ns, 0);
      EXPECT_GE(rank.imbalance_ns, 0);
      EXPECT_GE(rank.communication_ns, 0);
    }
  });
}

TEST(Simulate, BusyTimeIsTheSumOfARanksActions) {
  const Schedule lowered = Lower(ZeroBubbleV({3, 7}).value(), {.reduce_gradients = true}).value();
  std::mt19937 random(3);
  Costs costs = OverlappingCosts(lowered, random);
  for (const bool in_backward : {false, true}) {
    costs.updates_in_backward = in_backward;
    const Simulation simulation = Simulate(lowered, costs).value();
    for (Rank rank(0); rank.value() < 3; ++rank) {
      int64_t expected = 0;
      for (const StageId stage : lowered.StagesOf(rank)) {
        const StageTimes& t = costs.of(stage);
        expected += 7 * (t.forward_ns + t.backward_input_ns + t.backward_weight_ns) + t.step_ns;
      }
      EXPECT_EQ(simulation.ranks[static_cast<size_t>(rank.value())].busy_ns, expected);
    }
  }
}

TEST(Simulate, MessagesThatTakeNoTimeCauseNoIdleTime) {
  ForManyRuns([](const Schedule& lowered, Costs costs, Sends sends) {
    costs.links.clear();
    costs.collectives = {};
    for (StageTimes& times : costs.stages) times.reduce_ns = 0;
    if (!costs.host_link.occupies_rank) costs.host_link = {};
    const Simulation simulation = Simulate(lowered, costs, {.sends = sends}).value();
    for (const RankTimes& rank : simulation.ranks) EXPECT_EQ(rank.communication_ns, 0);
  });
}

TEST(Simulate, EqualRanksHaveNoImbalance) {
  const Simulation simulation =
      Simulate(OneFOneB({4, 8}).value(), LoopCosts(4, 1, {30, 40, 50}, 7)).value();
  for (const RankTimes& rank : simulation.ranks) {
    EXPECT_EQ(rank.imbalance_ns, 0);
    EXPECT_EQ(rank.busy_ns, 8 * 120);
  }
}

TEST(Simulate, ASlowStageIsTheImbalanceOfTheOthers) {
  Costs costs = LoopCosts(3, 1, {10, 10, 10}, 0);
  costs.stages[1].forward_ns = 15;
  const Simulation simulation = Simulate(GPipe({3, 4}).value(), costs).value();
  EXPECT_EQ(simulation.ranks[0].imbalance_ns, 4 * 5);
  EXPECT_EQ(simulation.ranks[1].imbalance_ns, 0);
}

// Simulates one rank with two stages; its list is F0.0 F1.0 BW1.0 REDUCE1 BW0.0 REDUCE0, then what
// `end` says. Stage 1 is done at 40 and stage 0 at 60.
Simulation Reduced(const std::string& end, int64_t reduce_0_ns, int64_t reduce_1_ns,
                   Sends sends = Sends::kRendezvous) {
  Schedule lowered = FromText({0, 0}, 1, {"F0.0 F1.0 BW1.0 REDUCE1 BW0.0 REDUCE0 STEP0 STEP1"});
  const LoweringOptions options = {.reduce_gradients = true, .exchange_norms = end == "NORM"};
  FitToRun(options, lowered);
  Costs costs;
  costs.stages.assign(2, {.forward_ns = 10, .backward_ns = 20, .step_ns = 5});
  costs.stages[0].reduce_ns = reduce_0_ns;
  costs.stages[1].reduce_ns = reduce_1_ns;
  return Simulate(lowered, costs, {.sends = sends, .keep_trace = true}).value();
}

const TimedAction& TimesOf(const Simulation& simulation, Op op, int stage) {
  const std::vector<TimedAction>& list = simulation.trace.list_of(Rank(0));
  return *std::find_if(list.begin(), list.end(), [&](const TimedAction& timed) {
    return timed.action.op == op && (stage < 0 || timed.action.stage == StageId(stage));
  });
}

// The gradients of stage 1 are summed from 40 to 55; its STEP is at 65.
TEST(Simulate, HidesAReductionBehindOtherWork) {
  const Simulation simulation = Reduced("", 0, 15);
  EXPECT_EQ(simulation.step_ns, 70);
  EXPECT_EQ(TimesOf(simulation, Op::kReduceGradients, 1).start_ns, 40);
  EXPECT_EQ(TimesOf(simulation, Op::kReduceGradients, 1).end_ns, 55);
  EXPECT_EQ(TimesOf(simulation, Op::kStep, 0).start_ns, 60);
  EXPECT_EQ(TimesOf(simulation, Op::kStep, 1).start_ns, 65);
  EXPECT_EQ(simulation.ranks[0].busy_ns, 70);
  EXPECT_EQ(simulation.ranks[0].communication_ns, 0);
}

TEST(Simulate, AStepWaitsForTheReductionOfItsStage) {
  const Simulation simulation = Reduced("", 9, 15);
  EXPECT_EQ(TimesOf(simulation, Op::kStep, 0).reached_ns, 60);
  EXPECT_EQ(TimesOf(simulation, Op::kStep, 0).start_ns, 69);
  EXPECT_EQ(simulation.step_ns, 79);
  EXPECT_EQ(simulation.ranks[0].busy_ns, 70);
  EXPECT_EQ(simulation.ranks[0].communication_ns, 9);
}

// The sum of stage 1 ends at 75; that of stage 0, ready at 60, runs from then on.
TEST(Simulate, MakesTheReductionsOfARankOneAfterTheOther) {
  const Simulation simulation = Reduced("", 9, 35);
  EXPECT_EQ(TimesOf(simulation, Op::kReduceGradients, 1).end_ns, 75);
  EXPECT_EQ(TimesOf(simulation, Op::kReduceGradients, 0).start_ns, 60);
  EXPECT_EQ(TimesOf(simulation, Op::kReduceGradients, 0).end_ns, 84);
  EXPECT_EQ(TimesOf(simulation, Op::kStep, 0).start_ns, 84);
  EXPECT_EQ(simulation.step_ns, 94);
}

TEST(Simulate, NormsWaitForAllReductions) {
  const Simulation simulation = Reduced("NORM", 9, 35);
  EXPECT_EQ(TimesOf(simulation, Op::kExchangeNorms, -1).start_ns, 84);
  EXPECT_EQ(simulation.step_ns, 94);
}

// REDUCE1 delays BW0 until 55, and REDUCE0 the steps until 84.
TEST(Simulate, ARankThatDoesNotOverlapMessagesWaitsForItsReductions) {
  const Simulation simulation = Reduced("", 9, 15, Sends::kBlocking);
  EXPECT_EQ(TimesOf(simulation, Op::kBackward, 0).start_ns, 55);
  EXPECT_EQ(simulation.step_ns, 94);
  EXPECT_EQ(simulation.ranks[0].communication_ns, 24);
}

// Performs two micro-batches on one rank: F takes 10, BW 20, and a copy 15 ns.
Simulation Moved(const std::string& list, bool occupies_rank = false) {
  Costs costs;
  costs.stages = {{.forward_ns = 10, .backward_ns = 20, .host_copy_bytes = 10}};
  costs.host_link = {.link = {.latency_ns = 5, .bytes_per_second = 1e9},
                     .occupies_rank = occupies_rank};
  return Simulate(FromText({0}, 2, {list}), costs,
                  {.sends = Sends::kRendezvous, .keep_trace = true})
      .value();
}

// The copies leave from 10 to 25 and from 25 to 40, and come back from 40 to 55 and from 55 to 70.
TEST(Simulate, CopiesOfOneDirectionAreMadeOneAfterTheOther) {
  const Simulation simulation = Moved(
      "F0.0 OFFLOAD0.0 F0.1 OFFLOAD0.1 RELEASE0.0 RELEASE0.1 FETCH0.0 FETCH0.1 BW0.0 BW0.1 STEP0");
  const std::vector<TimedAction>& list = simulation.trace.list_of(Rank(0));
  EXPECT_EQ(list[1].start_ns, 10);
  EXPECT_EQ(list[1].end_ns, 25);
  EXPECT_EQ(list[2].start_ns, 10);  // F runs beside it
  EXPECT_EQ(list[3].start_ns, 20);
  EXPECT_EQ(list[3].end_ns, 40);
  EXPECT_EQ(list[4].start_ns, 25);
  EXPECT_EQ(list[5].start_ns, 40);
  EXPECT_EQ(list[6].end_ns, 55);
  EXPECT_EQ(list[7].end_ns, 70);
  EXPECT_EQ(list[8].reached_ns, 40);
  EXPECT_EQ(list[8].start_ns, 55);
  EXPECT_EQ(list[9].start_ns, 75);  // fetched at 70
  EXPECT_EQ(simulation.step_ns, 95);
  EXPECT_EQ(simulation.ranks[0].busy_ns, 60);
  EXPECT_EQ(simulation.ranks[0].communication_ns, 35);
}

TEST(Simulate, CopiesOfBothDirectionsRunAtOnce) {
  const Simulation simulation = Moved(
      "F0.0 OFFLOAD0.0 RELEASE0.0 F0.1 FETCH0.0 OFFLOAD0.1 RELEASE0.1 BW0.0 FETCH0.1 BW0.1 STEP0");
  // Both begin at 35 and end at 50; the last one is fetched from 70 to 85.
  EXPECT_EQ(simulation.trace.list_of(Rank(0))[7].start_ns, 50);
  EXPECT_EQ(simulation.step_ns, 105);
}

TEST(Simulate, CopiesMayKeepTheRankBusy) {
  const Simulation simulation =
      Moved("F0.0 OFFLOAD0.0 F0.1 RELEASE0.0 FETCH0.0 BW0.0 BW0.1 STEP0", /*occupies_rank=*/true);
  EXPECT_EQ(simulation.step_ns, 10 + 15 + 10 + 15 + 20 + 20);
  EXPECT_EQ(simulation.ranks[0].busy_ns, simulation.step_ns);
}

// Two ranks, one micro-batch, everything with a distinct time: every time can be computed by hand.
TEST(Simulate, TimesOfAChainAreTheSumOfItsLinks) {
  const Schedule lowered = Lower(OneFOneB({2, 1}).value()).value();
  Costs costs;
  costs.stages = {
      {.forward_ns = 100, .backward_ns = 300, .step_ns = 7, .output_bytes = 50},
      {.forward_ns = 200, .backward_ns = 400, .step_ns = 9, .input_gradient_bytes = 20}};
  costs.links = {{},
                 {.latency_ns = 10, .bytes_per_second = 1e9},
                 {.latency_ns = 1000, .bytes_per_second = 1e10},
                 {}};
  const Simulation simulation = Simulate(lowered, costs, {.keep_trace = true}).value();
  // F0 ends at 100; 10 + 50 later F1 starts and ends at 360; BW1 ends at 760; 1002 later BW0
  // starts, ends at 2062, and STEP0 at 2069.
  EXPECT_EQ(simulation.step_ns, 2069);
  EXPECT_EQ(simulation.span_ns, 2069);
  EXPECT_EQ(simulation.ranks[1].start_ns, 160);
  EXPECT_EQ(simulation.ranks[1].end_ns, 769);
  EXPECT_EQ(simulation.ranks[0].communication_ns, 60 + 1002);
  EXPECT_EQ(simulation.ranks[0].imbalance_ns, 609 - 407);
}

TEST(Simulate, StepInTheBackwardPassDelaysWhatWaitsForIt) {
  Costs costs;
  costs.stages = {{.forward_ns = 10, .backward_ns = 10, .step_ns = 5},
                  {.forward_ns = 10, .backward_ns = 10, .step_ns = 5}};
  const Schedule lowered = Lower(OneFOneB({2, 1}).value()).value();
  EXPECT_EQ(SimulateDurations(lowered, costs).value().step_ns, 45);
  costs.updates_in_backward = true;
  EXPECT_EQ(SimulateDurations(lowered, costs).value().step_ns, 50);
}

TEST(Simulate, AnOverlappedPairIsOneOperation) {
  Costs costs;
  costs.stages = {{.forward_ns = 100, .backward_ns = 300}};
  costs.overlap_share = 0.75;
  const Simulation simulation =
      Simulate(FromText({0}, 2, {"F0.0 F0.1+ BW0.0 BW0.1"}), costs, {.keep_trace = true}).value();
  EXPECT_EQ(simulation.step_ns, 100 + 300 + 300);
  const std::vector<TimedAction>& list = simulation.trace.actions[0];
  EXPECT_EQ(list[1].start_ns, 100);
  EXPECT_EQ(list[2].start_ns, 100);
  EXPECT_EQ(list[1].end_ns, 400);
  EXPECT_EQ(list[2].end_ns, 400);
}

TEST(Simulate, AnOverlappedPairIsNoShorterThanEitherOfItsPasses) {
  const auto step = [](int64_t forward_ns, int64_t backward_ns) {
    const Costs costs = {.stages = {{.forward_ns = forward_ns, .backward_ns = backward_ns}},
                         .overlap_share = 0.6};
    const Schedule pair = FromText({0}, 2, {"F0.0 F0.1+ BW0.0 BW0.1"});
    return SimulateDurations(pair, costs).value().step_ns;
  };
  EXPECT_EQ(step(100, 300), 100 + 300 + 300);
  EXPECT_EQ(step(300, 100), 300 + 300 + 100);
  EXPECT_EQ(step(200, 200), 200 + 240 + 200);
}

TEST(Simulate, ABlockingSendHoldsItsSenderUp) {
  const Schedule lowered = Lower(GPipe({2, 2}).value()).value();
  Costs costs = LoopCosts(2, 1, {100, 100, 100}, 40);
  const auto step = [&](Sends sends) {
    return SimulateDurations(lowered, costs, sends).value().step_ns;
  };
  // The first send costs rank 0 40; its second F ends 40 later, and so does everything.
  EXPECT_EQ(step(Sends::kBuffered), 3 * 100 + 3 * 200 + 2 * 40);
  EXPECT_EQ(step(Sends::kRendezvous), step(Sends::kBuffered));
  EXPECT_EQ(step(Sends::kBlocking), step(Sends::kBuffered) + 2 * 40);
}

// A receive that is posted late delays its sender: "at most one send per lane is outstanding".
TEST(Simulate, RendezvousWaitsForTheReceive) {
  const Schedule lowered = FromText({0, 1}, 3,
                                    {"F0.0 SEND_F0.0 F0.1 SEND_F0.1 F0.2 SEND_F0.2",
                                     "RECV_F1.0 F1.0 RECV_F1.1 F1.1 RECV_F1.2 F1.2"});
  Costs costs;
  costs.stages = {{.forward_ns = 10}, {.forward_ns = 100}};
  const Simulation buffered = Simulate(lowered, costs, {.keep_trace = true}).value();
  const Simulation rendezvous =
      Simulate(lowered, costs, {.sends = Sends::kRendezvous, .keep_trace = true}).value();
  EXPECT_EQ(buffered.trace.actions[0].back().start_ns, 30);
  // The second message is taken at 110, when rank 1 posts its receive; only then the third is sent.
  EXPECT_EQ(rendezvous.trace.actions[0].back().reached_ns, 30);
  EXPECT_EQ(rendezvous.trace.actions[0].back().start_ns, 110);
  EXPECT_EQ(rendezvous.trace.actions[0].back().end_ns, 210);
}

TEST(Simulate, TraceKeepsTheRulesOfTraces) {
  ForManyRuns([](const Schedule& lowered, const Costs& costs, Sends sends) {
    const Simulation simulation =
        Simulate(lowered, costs, {.sends = sends, .keep_trace = true}).value();
    const Trace& trace = simulation.trace;
    EXPECT_EQ(trace.step_ns, simulation.step_ns);
    std::map<Action, int64_t> sent;  // by receive
    for (Rank rank(0); rank.value() < lowered.num_ranks(); ++rank) {
      const std::vector<TimedAction>& list = trace.list_of(rank);
      ASSERT_EQ(list.size(), lowered.list_of(rank).size());
      int64_t free_ns = 0;
      for (size_t i = 0; i < list.size(); ++i) {
        EXPECT_EQ(list[i].action, lowered.list_of(rank)[i]);
        const bool second =
            i > 0 && IsCompute(list[i].action.op) && list[i - 1].action.overlaps_next;
        EXPECT_EQ(list[i].reached_ns, second ? list[i - 1].reached_ns : free_ns);
        EXPECT_GE(list[i].start_ns, list[i].reached_ns);
        EXPECT_GE(list[i].end_ns, list[i].start_ns);
        const Op op = list[i].action.op;
        const bool beside = IsHostCopy(op)
                                ? !costs.host_link.occupies_rank
                                : RunsBeside(op) && (IsReceive(op) || sends != Sends::kBlocking);
        const bool occupies = !beside;
        free_ns = occupies ? list[i].end_ns : list[i].start_ns;
        if (IsSend(list[i].action.op)) {
          sent[OtherEnd(list[i].action)] = list[i].end_ns;
        }
      }
      EXPECT_LE(free_ns, trace.step_ns);
    }
    for (const std::vector<TimedAction>& list : trace.actions) {
      for (const TimedAction& timed : list) {
        if (!IsReceive(timed.action.op)) continue;
        EXPECT_EQ(timed.end_ns, std::max(timed.start_ns, sent[Alone(timed.action)]))
            << ToString(timed.action);
      }
    }
  });
}

TEST(Simulate, IsTheSameForComputeAndLoweredSchedulesWithBufferedSends) {
  std::mt19937 random(5);
  for (const Generator& generator : Generators()) {
    const Schedule compute = generator.generate({4, 8}).value();
    Costs costs = OverlappingCosts(compute, random);
    for (StageTimes& times : costs.stages) times.step_ns = 0;
    EXPECT_EQ(SimulateDurations(compute, costs).value().step_ns,
              SimulateDurations(Lower(compute).value(), costs).value().step_ns)
        << generator.name;
  }
}

TEST(Simulate, PeaksInBytesAreTheMemoryPlanners) {
  const Schedule lowered = Lower(ZeroBubbleV({2, 4}).value()).value();
  Costs costs = LoopCosts(2, 2, {10, 10, 10}, 0);
  costs.memory = TypicalStages(lowered);
  const Simulation simulation = Simulate(lowered, costs).value();
  for (Rank rank(0); rank.value() < 2; ++rank) {
    const MemoryPlan plan = PlanMemory(lowered, rank, costs.memory).value();
    const RankTimes& times = simulation.ranks[static_cast<size_t>(rank.value())];
    EXPECT_EQ(times.peak_bytes, plan.peak_bytes());
    EXPECT_EQ(times.peak_stash_bytes, plan.peak_stash_bytes);
    EXPECT_GT(times.peak_stash_bytes, 0);
  }
}

TEST(Simulate, RefusesCostsThatDoNotFitTheSchedule) {
  const Schedule schedule = OneFOneB({2, 2}).value();
  const Refusal<Change<Costs>> refusals[] = {
      {[](Costs& costs) { costs.stages.pop_back(); }, "2 stages, but the times of 1"},
      {[](Costs& costs) { costs.stages[1].forward_ns = -1; }, "stage 1: forward_ns is -1"},
      {[](Costs& costs) { costs.stages[1].output_bytes = kMaxSizeBytes + 1; },
       "stage 1: output_bytes"},
      {[](Costs& costs) { costs.links.resize(3); }, "3 links for 2 ranks"},
      {[](Costs& costs) { costs.links[0].bytes_per_second = 0.5; },
       "link 0: bytes_per_second is 0.5"},
      {[](Costs& costs) { costs.overlap_share = 0; }, "overlap_share"},
      {[](Costs& costs) { costs.memory.resize(1); }, "the memory of 1"},
  };
  Costs costs = LoopCosts(2, 1, {1, 1, 1}, 1);
  ExpectRefusedChanges(
      costs, [&](const Costs& changed) { return Simulate(schedule, changed); }, refusals);
  for (StageTimes& times : costs.stages) times.forward_ns = kMaxTimeNs;
  EXPECT_OK(Simulate(schedule, costs));
  EXPECT_THAT(Simulate(OneFOneB({2, 2000}).value(), costs), IsRefused(""));
}

TEST(Simulate, ComputeSchedulesHaveOnlyBufferedSends) {
  const Costs costs = LoopCosts(2, 1, {1, 1, 1}, 1);
  for (const Sends sends : {Sends::kRendezvous, Sends::kBlocking, Sends::kGrouped}) {
    EXPECT_EQ(SimulateDurations(OneFOneB({2, 2}).value(), costs, sends).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(Simulate, AScheduleThatStandsStillSaysWhere) {
  const Schedule crossed = FromText({0, 1}, 2, {"F0.0 BW0.0 F0.1 BW0.1", "F1.0 F1.1 BW1.0 BW1.1"});
  const absl::Status status = Simulate(crossed, LoopCosts(2, 1, {1, 1, 1}, 0)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0, position 1 (stage 0 BW micro-batch 0)"));
}

TEST(UniformCosts, ChunksOfADeviceSumToItsTimesExactly) {
  for (int v = 1; v <= 7; ++v) {
    const Costs costs = LoopCosts(3, v, {1000, 1001, 1003}, 5);
    ASSERT_EQ(costs.stages.size(), static_cast<size_t>(3 * v));
    StageTimes sum;
    for (int chunk = 0; chunk < v; ++chunk) {
      const StageTimes& times = costs.stages[static_cast<size_t>(3 * chunk)];
      sum.forward_ns += times.forward_ns;
      sum.backward_input_ns += times.backward_input_ns;
      sum.backward_weight_ns += times.backward_weight_ns;
      EXPECT_EQ(times.backward_ns, times.backward_input_ns + times.backward_weight_ns);
    }
    EXPECT_EQ(sum.forward_ns, 1000);
    EXPECT_EQ(sum.backward_input_ns, 1001);
    EXPECT_EQ(sum.backward_weight_ns, 1003);
  }
}

TEST(Link, TakesItsLatencyAndABytesShareOfASecond) {
  EXPECT_EQ((Link{.latency_ns = 7, .bytes_per_second = 0}.TransferNs(1 << 30)), 7);
  EXPECT_EQ((Link{.latency_ns = 7, .bytes_per_second = 2e9}.TransferNs(1000)), 507);
}

}  // namespace
}  // namespace stagecoach::schedule
