#include "engine/train/measure/measured_costs.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partition/plan/plan.h"
#include "schedule/generators/generators.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using schedule::Costs;
using schedule::Op;
using schedule::Rank;
using schedule::Schedule;
using schedule::Sends;
using schedule::StageId;
using schedule::StageTimes;
using schedule::Trace;

constexpr int64_t kBytes = 100'000;

// Returns costs of stages that all differ, whose messages all have kBytes bytes and take no time.
Costs RandomCosts(int stages, bool updates_in_backward, uint32_t seed) {
  std::mt19937 random(seed);
  const auto time = [&random] { return static_cast<int64_t>(1000 + random() % 1000); };
  Costs costs{.updates_in_backward = updates_in_backward};
  for (int stage = 0; stage < stages; ++stage) {
    StageTimes times = {.forward_ns = time(),
                        .backward_input_ns = time(),
                        .backward_weight_ns = time(),
                        .step_ns = time(),
                        .output_bytes = kBytes,
                        .input_gradient_bytes = stage == 0 ? 0 : kBytes};
    times.backward_ns = times.backward_input_ns + times.backward_weight_ns;
    costs.stages.push_back(times);
    costs.memory.push_back(
        {.output_bytes = kBytes, .input_gradient_bytes = stage == 0 ? 0 : kBytes});
  }
  return costs;
}

// Returns a lowered schedule, as performed by a device without overlap.
Schedule LoweredFrom(const absl::StatusOr<Schedule>& compute) {
  Schedule lowered = schedule::Lower(compute.value()).value();
  for (std::vector<schedule::Action>& list : lowered.actions) {
    for (schedule::Action& action : list) action.overlaps_next = false;
  }
  return lowered;
}

Trace SimulatedTrace(const Schedule& lowered, const Costs& costs) {
  return schedule::Simulate(lowered, costs, {.sends = Sends::kRendezvous, .keep_trace = true})
      .value()
      .trace;
}

// The times of a trace are the costs that it was simulated with.
TEST(MeasureCosts, FindsTheCostsOfASimulation) {
  for (const schedule::Generator& generator : schedule::Generators()) {
    for (const int ranks : {1, 2, 3}) {
      for (const bool updates_in_backward : {false, true}) {
        SCOPED_TRACE(absl::StrCat(std::string(generator.name), ", ", ranks, " ranks, ",
                                  updates_in_backward ? "updates in backward" : "updates apart"));
        const Schedule lowered =
            LoweredFrom(generator.generate({.ranks = ranks, .micro_batches = 6}));
        Costs costs = RandomCosts(lowered.num_stages(), updates_in_backward, 1);
        for (StageId stage(0); stage.value() < lowered.num_stages(); ++stage) {
          if (lowered.SplitsBackward(stage)) continue;
          // B and W are then taken to be half of BW each.
          StageTimes& times = costs.stages[static_cast<size_t>(stage.value())];
          times.backward_input_ns = times.backward_ns / 2;
          times.backward_weight_ns = times.backward_ns - times.backward_input_ns;
        }
        const Costs measured =
            MeasureCosts({SimulatedTrace(lowered, costs)}, updates_in_backward, costs.memory);
        EXPECT_EQ(measured.stages, costs.stages);
        EXPECT_EQ(measured.memory, costs.memory);
        EXPECT_EQ(measured.updates_in_backward, updates_in_backward);
      }
    }
  }
}

// This holds even if one waits for the one before it: the second stage of a rank is done first.
TEST(MeasureCosts, FindsTheReductionsOfASimulation) {
  const Schedule lowered =
      schedule::Lower(schedule::Interleaved({.ranks = 2, .micro_batches = 4}).value(),
                      {.reduce_gradients = true})
          .value();
  Costs costs = RandomCosts(4, /*updates_in_backward=*/false, 7);
  for (StageTimes& times : costs.stages) times.reduce_ns = 40'000 + times.forward_ns;
  const Costs measured = MeasureCosts({SimulatedTrace(lowered, costs)}, false, costs.memory);
  for (size_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(measured.stages[stage].reduce_ns, costs.stages[stage].reduce_ns) << stage;
  }
}

TEST(MeasureCosts, PredictTheStepThatTheyWereMeasuredOn) {
  for (const char* name : {"1f1b", "interleaved", "zb-h1", "dualpipe-v"}) {
    const Schedule lowered =
        LoweredFrom(schedule::Generate(name, {.ranks = 2, .micro_batches = 6}));
    const Costs costs = RandomCosts(lowered.num_stages(), true, 2);
    const Trace trace = SimulatedTrace(lowered, costs);
    const Costs measured = MeasureCosts({trace}, true, costs.memory);
    EXPECT_EQ(SimulatedTrace(lowered, measured).step_ns, trace.step_ns) << name;
  }
}

Schedule OneFOneB() { return LoweredFrom(schedule::OneFOneB({.ranks = 2, .micro_batches = 4})); }

TEST(MeasureCosts, CountsAllAsBackwardIfThereIsOneMicroBatch) {
  const Schedule lowered = LoweredFrom(schedule::OneFOneB({.ranks = 1, .micro_batches = 1}));
  const Costs costs = RandomCosts(1, /*updates_in_backward=*/true, 3);
  const Costs measured = MeasureCosts({SimulatedTrace(lowered, costs)}, true, costs.memory);
  EXPECT_EQ(measured.stages[0].backward_ns, costs.stages[0].backward_ns + costs.stages[0].step_ns);
  EXPECT_EQ(measured.stages[0].step_ns, 0);
}

TEST(MeasureCosts, TakesTheMedianOverTheTraces) {
  const Schedule lowered = OneFOneB();
  std::vector<Trace> traces;
  for (const int64_t forward_ns : {900'000, 2000, 1000}) {
    Costs costs = RandomCosts(2, false, 4);
    costs.stages[0].forward_ns = forward_ns;
    traces.push_back(SimulatedTrace(lowered, costs));
  }
  EXPECT_EQ(MeasureCosts(traces, false, RandomCosts(2, false, 4).memory).stages[0].forward_ns,
            2000);
}

TEST(MeasureCosts, TakesTheMeanOverTheMicroBatchesOfAStep) {
  const Schedule lowered = OneFOneB();
  const Costs costs = RandomCosts(2, false, 5);
  Trace trace = SimulatedTrace(lowered, costs);
  for (schedule::TimedAction& timed : trace.actions[1]) {
    if (timed.action.op == Op::kForward) timed.end_ns += 10 * timed.action.micro_batch.value();
  }
  EXPECT_EQ(MeasureCosts({trace}, false, costs.memory).stages[1].forward_ns,
            costs.stages[1].forward_ns + 15);
}

TEST(MeasureCosts, FindsTheSpeedOfTheLinks) {
  Costs costs = RandomCosts(2, false, 6);
  costs.links = {{.latency_ns = 0, .bytes_per_second = 1e9}};
  const Costs measured = MeasureCosts({SimulatedTrace(OneFOneB(), costs)}, false, costs.memory);
  ASSERT_EQ(measured.links.size(), 1u);
  EXPECT_EQ(measured.links[0].latency_ns, 0);
  EXPECT_NEAR(measured.links[0].bytes_per_second, 1e9, 1.0);
}

TEST(MeasureCosts, FindsTheSpeedOfCopiesToTheHostAndWhetherTheyOccupyARank) {
  const Schedule lowered =
      schedule::Lower(schedule::GPipe({.ranks = 2, .micro_batches = 8}).value(), {.offload = 1.0})
          .value();
  for (const bool occupies : {false, true}) {
    Costs costs = RandomCosts(2, false, 8);
    costs.host_link = {.link = {.bytes_per_second = 2e9}, .occupies_rank = occupies};
    for (size_t stage = 0; stage < 2; ++stage) {
      costs.memory[stage].stash_bytes = 30'000;
      costs.memory[stage].weight_stash_bytes = 10'000;
      StageTimes& times = costs.stages[stage];
      times.host_copy_bytes = 40'000;
      times.backward_input_ns = times.backward_ns / 2;
      times.backward_weight_ns = times.backward_ns - times.backward_input_ns;
    }
    const Trace trace = SimulatedTrace(lowered, costs);
    const Costs measured = MeasureCosts({trace}, false, costs.memory);
    EXPECT_NEAR(measured.host_link.link.bytes_per_second, 2e9, 1.0);
    EXPECT_EQ(measured.host_link.occupies_rank, occupies);
    EXPECT_EQ(measured.stages, costs.stages);
    EXPECT_EQ(SimulatedTrace(lowered, measured).step_ns, trace.step_ns);
  }
}

// All of rank 1's forward passes start 70 ns after their input has arrived; it had waited only for
// the first.
TEST(MeasureCosts, LatencyIsHowLongAWaitingRankTakesToGoOn) {
  Costs costs = RandomCosts(2, false, 7);
  costs.stages[0].forward_ns = 1;
  Trace trace = SimulatedTrace(OneFOneB(), costs);
  for (schedule::TimedAction& timed : trace.actions[1]) {
    if (timed.action.op == Op::kForward && timed.action.micro_batch.value() == 0) {
      timed.start_ns += 70;
    }
  }
  for (schedule::TimedAction& timed : trace.actions[0]) {
    if (timed.action.op == Op::kBackward) timed.reached_ns = timed.start_ns;  // it never waited
  }
  EXPECT_EQ(MeasureCosts({trace}, false, costs.memory).links[0].latency_ns, 70);
  EXPECT_EQ(MessageNs({trace}), 70);
  // The first quartile of the waits counts.
  Trace slow = trace, slowest = trace;
  for (Trace* later : {&slow, &slowest}) {
    for (schedule::TimedAction& timed : later->actions[1]) {
      if (timed.action.op == Op::kForward && timed.action.micro_batch.value() == 0) {
        timed.start_ns += later == &slow ? 30 : 500;
      }
    }
  }
  EXPECT_EQ(MessageNs({slow, slowest, slow, trace}), 100);
  EXPECT_EQ(MessageNs({slow, slowest, trace, trace, trace}), 70);
}

}  // namespace
}  // namespace stagecoach::engine
