// The records that a trainer makes of a step.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/simulate/simulate.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::TimedAction;
using schedule::Trace;
using ::stagecoach::testing::StatusIs;

constexpr int kTracedMicroBatches = 6;
constexpr int64_t kTracedBatchRows = 8 * kTracedMicroBatches;

// Returns a trainer that has done two steps.
std::unique_ptr<Trainer> TracingTrainer(const std::string& schedule, float clip_norm = 0.0F) {
  const Model model = SmallModel();
  TrainerOptions options{.trace = true};
  options.optimizer.clip_norm = clip_norm;
  auto trainer = MakeTrainer(
      model,
      EvenPlan(model, 3, schedule, kTracedMicroBatches, kTracedBatchRows / kTracedMicroBatches),
      options);
  const auto data = SmallData(kTracedBatchRows);
  for (int step = 0; step < 2; ++step) {
    EXPECT_OK(trainer->Step(*data, Rows(0, kTracedBatchRows)));
  }
  return trainer;
}

class Traces : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Trainer> trainer_ = TracingTrainer(GetParam());
  const Trace trace_ = trainer_->LastTrace().value();
};

TEST_P(Traces, HaveTheActionsOfTheSchedule) {
  const schedule::Schedule& lowered = trainer_->run().compiled.lowered->training;
  EXPECT_EQ(trace_.name, GetParam());
  EXPECT_EQ(trace_.source, "measured");
  EXPECT_EQ(trace_.num_micro_batches, kTracedMicroBatches);
  EXPECT_EQ(trace_.rank_of_stage, lowered.rank_of_stage);
  ASSERT_EQ(trace_.actions.size(), lowered.actions.size());
  for (size_t rank = 0; rank < lowered.actions.size(); ++rank) {
    std::vector<Action> actions;
    for (const TimedAction& timed : trace_.actions[rank]) actions.push_back(timed.action);
    EXPECT_EQ(actions, lowered.actions[rank]);
  }
}

TEST_P(Traces, ReachActionsInOrderWaitAndPerformThem) {
  for (const std::vector<TimedAction>& list : trace_.actions) {
    int64_t free_ns = 0;  // when the rank can do something else
    for (const TimedAction& timed : list) {
      SCOPED_TRACE(ToString(timed.action));
      EXPECT_LE(free_ns, timed.reached_ns);
      EXPECT_LE(timed.reached_ns, timed.start_ns);
      EXPECT_LE(timed.start_ns, timed.end_ns);
      EXPECT_LE(timed.end_ns, trace_.step_ns);
      free_ns = schedule::IsTransfer(timed.action.op) ? timed.start_ns : timed.end_ns;
    }
  }
}

TEST_P(Traces, MessagesArriveAtBothEndsAtOnceAndBeforeTheyAreRead) {
  std::map<Action, TimedAction> performed;
  for (const std::vector<TimedAction>& list : trace_.actions) {
    for (const TimedAction& timed : list) performed[Alone(timed.action)] = timed;
  }
  int messages = 0;
  for (const auto& [action, receive] : performed) {
    if (!schedule::IsReceive(action.op)) continue;
    ++messages;
    const TimedAction& send = performed.at(OtherEnd(action));
    EXPECT_EQ(receive.end_ns, send.end_ns);
    EXPECT_GT(receive.bytes, 0);
    EXPECT_EQ(receive.bytes, send.bytes);
    for (const schedule::Op op : {ComputeOf(action.op), schedule::Op::kBackward}) {
      const auto reader =
          performed.find({.op = op, .stage = action.stage, .micro_batch = action.micro_batch});
      if (reader == performed.end()) continue;
      if (op == schedule::Op::kBackward && ComputeOf(action.op) == schedule::Op::kForward) continue;
      EXPECT_LE(receive.end_ns, reader->second.start_ns) << ToString(reader->first);
    }
  }
  EXPECT_GT(messages, 0);
}

// The stash is exact to the byte, during and after every single action.
TEST_P(Traces, StashWhatTheSimulationSays) {
  ASSERT_OK_AND_ASSIGN(const schedule::Costs costs, trainer_->MeasuredCosts());
  const schedule::Schedule& lowered = trainer_->run().compiled.lowered->training;
  ASSERT_OK_AND_ASSIGN(const schedule::Simulation simulation,
                       schedule::Simulate(lowered, costs, {.keep_trace = true}));
  int64_t most = 0;
  for (size_t rank = 0; rank < trace_.actions.size(); ++rank) {
    for (size_t i = 0; i < trace_.actions[rank].size(); ++i) {
      const TimedAction& measured = trace_.actions[rank][i];
      const TimedAction& simulated = simulation.trace.actions[rank][i];
      EXPECT_EQ(measured.bytes, simulated.bytes) << rank << " " << ToString(measured.action);
      EXPECT_EQ(measured.peak_stash_bytes, simulated.peak_stash_bytes)
          << rank << " " << ToString(measured.action);
      if (schedule::IsCompute(measured.action.op)) most = std::max(most, measured.bytes);
    }
  }
  EXPECT_GT(most, 0);
}

TEST_P(Traces, GiveCostsToSimulateWith) {
  ASSERT_OK_AND_ASSIGN(const schedule::Costs costs, trainer_->MeasuredCosts());
  const schedule::Schedule& lowered = trainer_->run().compiled.lowered->training;
  EXPECT_OK(CheckCosts(lowered, costs));
  EXPECT_TRUE(costs.updates_in_backward);
  for (const schedule::StageTimes& times : costs.stages) {
    EXPECT_GT(times.forward_ns, 0);
    EXPECT_GT(times.backward_ns, 0);
    EXPECT_GT(times.output_bytes, 0);
  }
  ASSERT_OK_AND_ASSIGN(const schedule::Simulation simulation,
                       schedule::Simulate(lowered, costs, {.sends = schedule::Sends::kRendezvous}));
  EXPECT_GT(simulation.step_ns, 0);
  const std::vector<DeviceReport> devices = trainer_->Devices().value();
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    EXPECT_EQ(simulation.ranks[rank].peak_stash_bytes, devices[rank].measured_stash_bytes);
    EXPECT_EQ(simulation.ranks[rank].peak_bytes, devices[rank].measured_peak_bytes);
  }
}

std::string ScheduleNameOf(const ::testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Schedules, Traces,
                         ::testing::Values("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1",
                                           "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"),
                         ScheduleNameOf);

TEST(Trace, StepsTakeTimeOfTheirOwnWhenGradientsAreClipped) {
  const auto trainer = TracingTrainer("1f1b", /*clip_norm=*/0.1F);
  ASSERT_OK_AND_ASSIGN(const schedule::Costs costs, trainer->MeasuredCosts());
  EXPECT_FALSE(costs.updates_in_backward);
  for (const schedule::StageTimes& times : costs.stages) EXPECT_GT(times.step_ns, 0);
}

// Every rank exchanges norms once, between its passes and its steps, and all are done together.
TEST(Trace, HasTheExchangeOfNorms) {
  const auto trainer = TracingTrainer("1f1b", /*clip_norm=*/0.1F);
  ASSERT_OK_AND_ASSIGN(const Trace trace, trainer->LastTrace());
  const Action norm = schedule::Collective(schedule::Op::kExchangeNorms, schedule::GroupId(0));
  int64_t last_reached_ns = 0;
  int64_t first_end_ns = trace.step_ns;
  for (const std::vector<TimedAction>& list : trace.actions) {
    const auto found = std::find_if(list.begin(), list.end(),
                                    [&](const TimedAction& timed) { return timed.action == norm; });
    ASSERT_NE(found, list.end());
    EXPECT_LE(found->reached_ns, found->start_ns);
    EXPECT_LT(found->start_ns, found->end_ns);
    last_reached_ns = std::max(last_reached_ns, found->reached_ns);
    first_end_ns = std::min(first_end_ns, found->end_ns);
  }
  EXPECT_LT(last_reached_ns, first_end_ns);
}

TEST(Trace, OfAClippedStepGivesCostsToSimulateWith) {
  const auto trainer = TracingTrainer("zb-h1", /*clip_norm=*/0.1F);
  ASSERT_OK_AND_ASSIGN(const schedule::Costs costs, trainer->MeasuredCosts());
  EXPECT_GT(costs.collectives.norms_ns, 0);
  ASSERT_OK_AND_ASSIGN(const schedule::Simulation simulation,
                       schedule::Simulate(trainer->run().compiled.lowered->training, costs,
                                          {.sends = schedule::Sends::kRendezvous}));
  const std::vector<DeviceReport> devices = trainer->Devices().value();
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    EXPECT_EQ(simulation.ranks[rank].peak_bytes, devices[rank].measured_peak_bytes);
  }
}

TEST(Trace, IsThatOfTheLastStep) {
  const auto trainer = TracingTrainer("1f1b");
  ASSERT_OK_AND_ASSIGN(const Trace before, trainer->LastTrace());
  ASSERT_OK(trainer->Evaluate(*SmallData(kTracedBatchRows)));
  EXPECT_EQ(trainer->LastTrace().value(), before);
  for (int step = 0; step < kTracedSteps; ++step) {
    ASSERT_OK(trainer->Step(*SmallData(kTracedBatchRows), Rows(0, kTracedBatchRows)));
    EXPECT_NE(trainer->LastTrace().value(), before);
  }
}

TEST(Trace, DoesNotChangeTheAnswer) {
  const Model model = SmallModel();
  const auto hash = [&](bool trace) {
    const auto trainer = MakeTrainer(
        model,
        EvenPlan(model, 2, "zb-h2", kTracedMicroBatches, kTracedBatchRows / kTracedMicroBatches),
        {.trace = trace});
    EXPECT_OK(trainer->Step(*SmallData(kTracedBatchRows), Rows(0, kTracedBatchRows)));
    return trainer->ParametersHash().value();
  };
  EXPECT_EQ(hash(true), hash(false));
}

TEST(Trace, IsRefusedUnlessItWasAskedForAndAStepIsDone) {
  const Model model = SmallModel();
  const partition::Plan plan = EvenPlan(model, 2, "1f1b", 2, 4);
  const auto untraced = MakeTrainer(model, plan, {});
  EXPECT_THAT(untraced->LastTrace(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "TrainerOptions::trace"));
  EXPECT_THAT(untraced->MeasuredCosts(), StatusIs(absl::StatusCode::kFailedPrecondition));
  const auto fresh = MakeTrainer(model, plan, {.trace = true});
  EXPECT_THAT(fresh->LastTrace(), StatusIs(absl::StatusCode::kFailedPrecondition, "no step"));
  EXPECT_THAT(fresh->MeasuredCosts(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace stagecoach::engine
