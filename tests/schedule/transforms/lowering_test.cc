#include "schedule/transforms/lowering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "schedule/generators/generators.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/handwritten.h"
#include "tests/testing/refusals.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> LoweredLists(const Schedule& compute) {
  std::vector<std::string> text;
  const Schedule lowered = Lower(compute).value();
  for (const std::vector<Action>& list : lowered.actions) text.push_back(ToText(list));
  return text;
}

std::vector<Schedule> ManySchedules() {
  std::vector<Schedule> schedules = {HandwrittenH1(), HandwrittenV()};
  for (int p = 1; p <= 5; ++p) {
    for (int m = 1; m <= 2 * p; ++m) {
      for (const Generator& generator : Generators()) {
        const absl::StatusOr<Schedule> schedule = generator.generate({p, m});
        if (!schedule.ok()) continue;
        schedules.push_back(*schedule);
        schedules.push_back(ForwardOnly(schedule->rank_of_stage, p, m).value());
      }
    }
  }
  return schedules;
}

TEST(Lower, PostsReceivesOneActionAheadAndSendsAtOnce) {
  EXPECT_THAT(LoweredLists(OneFOneB({2, 2}).value()),
              ElementsAre("F0.0 RECV_B0.0 SEND_F0.0 F0.1 RECV_B0.1 SEND_F0.1 BW0.0 BW0.1 STEP0",
                          "RECV_F1.0 F1.0 RECV_F1.1 BW1.0 SEND_B1.0 F1.1 BW1.1 SEND_B1.1 STEP1"));
}

TEST(Lower, ForwardOnlyHasNeitherGradientsNorSteps) {
  EXPECT_THAT(LoweredLists(ForwardOnly({Rank(0), Rank(1)}, 2, 2).value()),
              ElementsAre("F0.0 SEND_F0.0 F0.1 SEND_F0.1", "RECV_F1.0 RECV_F1.1 F1.0 F1.1"));
}

TEST(Lower, SendsGradientsAfterBAndNotAfterW) {
  EXPECT_EQ(LoweredLists(HandwrittenH1())[1],
            "RECV_F1.0 F1.0 RECV_F1.1 B1.0 SEND_B1.0 F1.1 B1.1 RECV_F1.2 SEND_B1.1 W1.0 F1.2 B1.2 "
            "SEND_B1.2 W1.1 W1.2 STEP1");
}

TEST(Lower, NeighborsOnOneRankExchangeNothingAndEachStageSteps) {
  EXPECT_EQ(LoweredLists(HandwrittenV())[1],
            "RECV_F1.0 F1.0 RECV_F1.1 F2.0 SEND_F2.0 F1.1 RECV_B2.0 F2.1 SEND_F2.1 B2.0 B1.0 "
            "RECV_B2.1 SEND_B1.0 W2.0 B2.1 B1.1 SEND_B1.1 W1.0 W2.1 W1.1 STEP1 STEP2");
}

// Rank 1 wants micro-batch 1 first, but rank 0 sends micro-batch 0 first.
TEST(Lower, ReceivesOfAPairFollowTheSenderEvenAgainstTheOrderOfUse) {
  const Schedule compute = FromText({0, 1}, 2, {"F0.0 F0.1 BW0.0 BW0.1", "F1.1 F1.0 BW1.0 BW1.1"});
  EXPECT_EQ(LoweredLists(compute)[1],
            "RECV_F1.0 RECV_F1.1 F1.1 F1.0 BW1.0 SEND_B1.0 BW1.1 SEND_B1.1 STEP1");
}

TEST(Lower, KeepsEverythingButTheActions) {
  const Schedule compute = HandwrittenV();
  Schedule lowered = Lower(compute).value();
  lowered.actions = compute.actions;
  EXPECT_EQ(lowered, compute);
}

TEST(Lower, KeepsTheComputeOrder) {
  for (const Schedule& compute : ManySchedules()) {
    Schedule lowered = Lower(compute).value();
    for (std::vector<Action>& list : lowered.actions) {
      std::erase_if(list, [](const Action& action) { return !IsCompute(action.op); });
    }
    EXPECT_EQ(lowered, compute);
  }
}

TEST(Lower, BothEndsOfEveryPairAgreeOnTheOrderOfMessages) {
  for (const Schedule& compute : ManySchedules()) {
    const Schedule lowered = Lower(compute).value();
    using Pair = std::pair<Rank, Rank>;
    std::map<Pair, std::vector<Action>> sent;
    std::map<Pair, std::vector<Action>> received;
    for (Rank rank(0); rank.value() < lowered.num_ranks(); ++rank) {
      for (const Action& action : lowered.list_of(rank)) {
        if (IsSend(action.op)) {
          sent[{rank, PeerOf(lowered, action)}].push_back(OtherEnd(action));
        } else if (IsReceive(action.op)) {
          received[{PeerOf(lowered, action), rank}].push_back(action);
        }
      }
    }
    EXPECT_EQ(sent, received);
  }
}

// A sender can then deliver while the receiver still computes.
TEST(Lower, PostsBeforeTheActionThatPrecedesTheReader) {
  for (const Schedule& compute : ManySchedules()) {
    const Schedule lowered = Lower(compute).value();
    for (const std::vector<Action>& list : lowered.actions) {
      for (auto receive = list.begin(); receive != list.end(); ++receive) {
        if (!IsReceive(receive->op)) continue;
        const auto reader = std::find_if(receive, list.end(), [&](const Action& action) {
          return IsCompute(action.op) && action.op != Op::kBackwardWeight &&
                 (action.op == Op::kForward) == (ComputeOf(receive->op) == Op::kForward) &&
                 action.stage == receive->stage && action.micro_batch == receive->micro_batch;
        });
        const auto between = std::count_if(
            receive, reader, [](const Action& action) { return IsCompute(action.op); });
        const bool at_start = std::none_of(
            list.begin(), receive, [](const Action& action) { return IsCompute(action.op); });
        EXPECT_TRUE(between >= 1 || at_start) << ToString(*receive);
      }
    }
  }
}

TEST(Lower, PutsReceivesBeforeSendsBetweenTwoOperations) {
  for (const Schedule& compute : ManySchedules()) {
    const Schedule lowered = Lower(compute).value();
    for (const std::vector<Action>& list : lowered.actions) {
      for (size_t i = 1; i < list.size(); ++i) {
        EXPECT_FALSE(IsSend(list[i - 1].op) && IsReceive(list[i].op)) << ToText(list);
      }
    }
  }
}

TEST(Lower, KeepsOverlappedPairsTogether) {
  int pairs = 0;
  const Schedule lowered = Lower(DualPipeV({4, 12}).value()).value();
  for (const std::vector<Action>& list : lowered.actions) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].overlaps_next) continue;
      EXPECT_TRUE(IsBackward(list[i + 1].op));
      ++pairs;
    }
  }
  EXPECT_GT(pairs, 0);
}

// Messages that others wait for leave first.
TEST(Lower, AddsAReductionAfterTheSendsOfAStagesLastGradient) {
  for (const Transfers transfers : {Transfers::kSeparate, Transfers::kGrouped}) {
    const LoweringOptions options = {.reduce_gradients = true, .transfers = transfers};
    const Schedule two = Lower(OneFOneB({2, 2}).value(), options).value();
    EXPECT_THAT(ToText(two.actions[0]), EndsWith("BW0.1 REDUCE0 STEP0"));
    EXPECT_THAT(ToText(two.actions[1]), EndsWith("BW1.1 SEND_B1.1 REDUCE1 STEP1"));
    // Stage 3 is done long before stage 0.
    const Schedule v = Lower(ZeroBubbleV({2, 3}).value(), options).value();
    EXPECT_THAT(ToText(v.actions[0]),
                AllOf(HasSubstr("REDUCE3 B0.1 "), EndsWith("B0.2 W0.2 REDUCE0 STEP0 STEP3")));
  }
}

TEST(Lower, AddsOneReductionPerStageIfAskedFor) {
  for (const Generator& generator : Generators()) {
    for (const bool is_asked_for : {false, true}) {
      const Schedule compute = generator.generate({4, 8}).value();
      const Schedule lowered = Lower(compute, {.reduce_gradients = is_asked_for}).value();
      EXPECT_TRUE(Validate(lowered).ok()) << generator.name;
      int64_t reductions = 0;
      for (const std::vector<Action>& list : lowered.actions) {
        reductions += std::count_if(list.begin(), list.end(), [](const Action& action) {
          return action.op == Op::kReduceGradients;
        });
      }
      EXPECT_EQ(reductions, is_asked_for ? compute.num_stages() : 0) << generator.name;
    }
  }
  const Schedule evaluation = ForwardOnly({Rank(0), Rank(1)}, 2, 1).value();
  EXPECT_THAT(ToText(Lower(evaluation, {.reduce_gradients = true}).value().actions[1]),
              Not(HasSubstr("REDUCE")));
}

// The result is as if it had been lowered for this run.
TEST(FitToRun, AddsAndLeavesOutReductions) {
  for (const Generator& generator : Generators()) {
    const Schedule compute = generator.generate({4, 8}).value();
    const Schedule without = Lower(compute).value();
    const Schedule with = Lower(compute, {.reduce_gradients = true}).value();
    for (const Schedule& given : {without, with}) {
      Schedule fitted = given;
      FitToRun({}, fitted);
      EXPECT_EQ(fitted, without) << generator.name;
      FitToRun({.reduce_gradients = true}, fitted);
      EXPECT_EQ(fitted, with) << generator.name;
    }
  }
}

TEST(FitToRun, LeavesReductionsWhereTheyAre) {
  const Schedule given = FromText({0, 0}, 1, {"F0.0 F1.0 BW1.0 BW0.0 REDUCE1 REDUCE0 STEP0 STEP1"});
  Schedule fitted = given;
  FitToRun({.reduce_gradients = true}, fitted);
  EXPECT_EQ(fitted, given);
}

// Every replica keeps all parameters.
TEST(FitToRun, LeavesOutGathersOfParameters) {
  Schedule fitted = FromText({0}, 1, {"UNSHARD0 F0.0 BW0.0 RESHARD0 STEP0"});
  FitToRun({}, fitted);
  EXPECT_EQ(ToText(fitted.actions[0]), "F0.0 BW0.0 STEP0");
}

// Whatever the order of the compute actions: if every rank can complete at all, it does so with
// receives as few and as late as Lower posts them.
TEST(Lower, AddsNoDeadlockToAnyOrderWithoutCycles) {
  std::mt19937 random(20260229);
  int without_cycle = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<Schedule> originals = {HandwrittenV(), ZeroBubbleV({3, 6}).value(),
                                             ZeroBubbleH2({4, 6}).value(),
                                             LoopedBfs({2, 5, 3}).value()};
    Schedule compute = originals[static_cast<size_t>(round) % originals.size()];
    for (int i = 0; i < 8; ++i) {
      std::vector<Action>& list = compute.actions[random() % compute.actions.size()];
      const size_t at = random() % (list.size() - 1);
      if (list[at].stage != list[at + 1].stage) std::swap(list[at], list[at + 1]);
    }
    const Costs costs =
        LoopCosts(compute.num_ranks(), compute.num_stages() / compute.num_ranks(), {1, 1, 1}, 0);
    if (!SimulateDurations(compute, costs).ok()) continue;
    const std::optional<Violation> violation = FindViolation(Lower(compute).value());
    EXPECT_TRUE(!violation.has_value() || violation->cycle.empty()) << violation->reason;
    ++without_cycle;
  }
  EXPECT_GT(without_cycle, 1000);
}

TEST(Lower, RefusesWhatItCannotLower) {
  using absl::StatusCode::kFailedPrecondition;
  ExpectRefusals({
      {Lower(Lower(OneFOneB({2, 2}).value()).value()),
       "rank 0, position 1 (stage 0 RECV_B micro-batch 0)"},
      {Lower(FromText({0, 1}, 1, {"F0.0 BW0.0", "BW1.0"})), "rank 1 lacks stage 1 F micro-batch 0",
       kFailedPrecondition},
      {Lower(FromText({0, 1}, 1, {"F0.0 F0.0 BW0.0", "F1.0 BW1.0"})), "", kFailedPrecondition},
      {Lower(FromText({0, 2}, 1, {"F0.0", "F1.0"})), "", kFailedPrecondition},
  });
}

}  // namespace
}  // namespace stagecoach::schedule
