#include "schedule/ir/action.h"

#include <gtest/gtest.h>

#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {
namespace {

constexpr Op kTransfers[] = {Op::kReceiveActivation, Op::kSendActivation, Op::kReceiveGradient,
                             Op::kSendGradient};

TEST(Action, OtherEndOfTheOtherEndIsTheActionItself) {
  for (const Op op : kTransfers) {
    const Action action{.op = op, .stage = StageId(3), .micro_batch = MicroBatch(7)};
    EXPECT_EQ(OtherEnd(OtherEnd(action)), action) << ToString(action);
  }
}

TEST(Action, ActivationsGoToTheNextStageAndGradientsToThePrevious) {
  EXPECT_EQ(
      OtherEnd({.op = Op::kSendActivation, .stage = StageId(3), .micro_batch = MicroBatch(7)}),
      (Action{.op = Op::kReceiveActivation, .stage = StageId(4), .micro_batch = MicroBatch(7)}));
  EXPECT_EQ(
      OtherEnd({.op = Op::kSendGradient, .stage = StageId(3), .micro_batch = MicroBatch(7)}),
      (Action{.op = Op::kReceiveGradient, .stage = StageId(2), .micro_batch = MicroBatch(7)}));
}

TEST(Action, EveryOperationIsOfOneClass) {
  for (int i = 0; i < kNumOps; ++i) {
    const Op op = static_cast<Op>(i);
    const int classes =
        IsCompute(op) + IsSend(op) + IsReceive(op) + MovesStash(op) + !HasMicroBatch(op);
    EXPECT_EQ(classes, 1) << OpName(op);
  }
}

TEST(Action, TextNamesStageOperationAndMicroBatch) {
  EXPECT_EQ(ToString({.op = Op::kForward, .stage = StageId(2), .micro_batch = MicroBatch(5)}),
            "stage 2 F micro-batch 5");
  EXPECT_EQ(ToString({.op = Op::kSendGradient, .stage = StageId(2), .micro_batch = MicroBatch(5)}),
            "stage 2 SEND_B micro-batch 5");
}

TEST(Action, TextOfAStepHasNoMicroBatch) {
  EXPECT_EQ(ToString({.op = Op::kStep, .stage = StageId(2)}), "stage 2 STEP");
}

TEST(Action, CodeIsOperationStageAndMicroBatch) {
  EXPECT_EQ(ToCode({.op = Op::kForward, .stage = StageId(2), .micro_batch = MicroBatch(5)}),
            "F2.5");
  EXPECT_EQ(ToCode({.op = Op::kReduceGradients, .stage = StageId(12)}), "REDUCE12");
  EXPECT_EQ(ToCode({.op = Op::kForward,
                    .overlaps_next = true,
                    .stage = StageId(0),
                    .micro_batch = MicroBatch(6)}),
            "F0.6+");
  EXPECT_EQ(ToCode(Collective(Op::kShareResults, GroupId(1))), "RESULTS1");
}

TEST(Action, CodesOfAllOperationsAreReadBack) {
  for (int i = 0; i < kNumOps; ++i) {
    const Op op = static_cast<Op>(i);
    Action action{.op = op,
                  .overlaps_next = op == Op::kForward,
                  .stage = StageId(31),
                  .micro_batch = HasMicroBatch(op) ? MicroBatch(207) : MicroBatch()};
    if (IsCollective(op)) action = Collective(op, GroupId(31));
    EXPECT_EQ(ParseCode(ToCode(action)).value(), action) << ToCode(action);
  }
}

TEST(Action, WhatIsNoCodeIsRefused) {
  for (const char* code :
       {"", "F", "F0", "F0.", "F.1", "F0.1.2", "F-1.0", "F+1.0", "F0.1x", "X0.1", "STEP", "STEP0.1",
        "NORM", "NORM0.1", "F 0.1", "F0. 1", "F99999999999.0", "+", "F0.1++"}) {
    EXPECT_EQ(ParseCode(code).status().code(), absl::StatusCode::kInvalidArgument) << code;
  }
}

TEST(Schedule, PeerIsTheRankOfTheNeighboringStage) {
  Schedule schedule;
  schedule.rank_of_stage = {Rank(4), Rank(2), Rank(9)};
  EXPECT_EQ(
      PeerOf(schedule,
             {.op = Op::kReceiveActivation, .stage = StageId(1), .micro_batch = MicroBatch(0)}),
      Rank(4));
  EXPECT_EQ(PeerOf(schedule,
                   {.op = Op::kSendActivation, .stage = StageId(1), .micro_batch = MicroBatch(0)}),
            Rank(9));
}

TEST(ScheduleDeathTest, PeerOfAnEndIsAProgrammersError) {
  Schedule schedule;
  schedule.rank_of_stage = {Rank(0), Rank(1)};
  EXPECT_DEATH(
      PeerOf(schedule,
             {.op = Op::kSendActivation, .stage = StageId(1), .micro_batch = MicroBatch(0)}),
      "has no peer");
}

TEST(Schedule, StagesOfARankAscend) {
  Schedule schedule;
  schedule.rank_of_stage = {Rank(0), Rank(1), Rank(1), Rank(0)};
  EXPECT_EQ(schedule.StagesOf(Rank(0)), (std::vector<StageId>{StageId(0), StageId(3)}));
}

}  // namespace
}  // namespace stagecoach::schedule
