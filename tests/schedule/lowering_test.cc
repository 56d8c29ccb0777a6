#include "schedule/lowering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "schedule/generators.h"
#include "schedule/validator.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> LoweredText(const Schedule& compute, int receive_lead = 1) {
  std::vector<std::string> text;
  const Schedule lowered = Lower(compute, {.receive_lead = receive_lead}).value();
  for (const std::vector<Action>& list : lowered.actions) text.push_back(ToText(list));
  return text;
}

std::vector<Schedule> ManySchedules() {
  std::vector<Schedule> schedules = {ZeroBubbleH1(), VPlacement()};
  for (int p = 1; p <= 5; ++p) {
    for (int m = 1; m <= 7; ++m) {
      schedules.push_back(GPipe({p, m}).value());
      schedules.push_back(OneFOneB({p, m}).value());
      schedules.push_back(ForwardOnly({p, m}).value());
    }
  }
  return schedules;
}

TEST(Lower, PostsReceivesOneActionAheadAndSendsAtOnce) {
  EXPECT_THAT(LoweredText(OneFOneB({2, 2}).value()),
              ElementsAre("F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
                          "RECV_F1.0 F1.0 RECV_F1.1 BW1.0 SEND_B1.0 F1.1 BW1.1 SEND_B1.1 STEP1"));
}

TEST(Lower, LeadOfZeroPostsRightBeforeTheUse) {
  EXPECT_THAT(LoweredText(OneFOneB({2, 2}).value(), 0),
              ElementsAre("F0.0 SEND_F0.0 F0.1 SEND_F0.1 RECV_B0.0 BW0.0 RECV_B0.1 BW0.1 STEP0",
                          "RECV_F1.0 F1.0 BW1.0 SEND_B1.0 RECV_F1.1 F1.1 BW1.1 SEND_B1.1 STEP1"));
}

TEST(Lower, ForwardOnlyHasNeitherGradientsNorSteps) {
  EXPECT_THAT(LoweredText(ForwardOnly({2, 2}).value()),
              ElementsAre("F0.0 SEND_F0.0 F0.1 SEND_F0.1", "RECV_F1.0 RECV_F1.1 F1.0 F1.1"));
}

TEST(Lower, SendsGradientsAfterBAndNotAfterW) {
  EXPECT_EQ(LoweredText(ZeroBubbleH1())[1],
            "RECV_F1.0 F1.0 RECV_F1.1 B1.0 SEND_B1.0 F1.1 B1.1 SEND_B1.1 RECV_F1.2 W1.0 F1.2 B1.2 "
            "SEND_B1.2 W1.1 W1.2 STEP1");
}

TEST(Lower, NeighboursOnOneRankExchangeNothingAndEachStageSteps) {
  EXPECT_EQ(LoweredText(VPlacement())[1],
            "RECV_F1.0 F1.0 RECV_F1.1 F2.0 SEND_F2.0 F1.1 RECV_B2.0 F2.1 SEND_F2.1 B2.0 B1.0 "
            "SEND_B1.0 RECV_B2.1 W2.0 B2.1 B1.1 SEND_B1.1 W1.0 W2.1 W1.1 STEP1 STEP2");
}

// Rank 1 wants micro-batch 1 first, but rank 0 sends micro-batch 0 first.
TEST(Lower, ReceivesOfAPairFollowTheSenderEvenAgainstTheOrderOfUse) {
  const Schedule compute = FromText({0, 1}, 2, {"F0.0 F0.1 BW0.0 BW0.1", "F1.1 F1.0 BW1.0 BW1.1"});
  EXPECT_EQ(LoweredText(compute)[1],
            "RECV_F1.0 RECV_F1.1 F1.1 F1.0 BW1.0 SEND_B1.0 BW1.1 SEND_B1.1 STEP1");
}

TEST(Lower, KeepsEverythingButTheActions) {
  const Schedule compute = VPlacement();
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

// So that two ranks that send to each other at the same time both find a posted receive.
TEST(Lower, LeadOfOnePostsBeforeThePrecedingActionStarts) {
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

TEST(Lower, EveryLeadFromOneOnIsValid) {
  for (const Schedule& compute : ManySchedules()) {
    for (const int lead : {1, 2, 3, 1000}) {
      const absl::Status status = Validate(Lower(compute, {.receive_lead = lead}).value());
      EXPECT_TRUE(status.ok()) << compute.name << " lead " << lead << ": " << status;
    }
  }
}

TEST(Lower, LeadOfZeroSufficesForGPipe) {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const absl::Status status =
          Validate(Lower(GPipe({p, m}).value(), {.receive_lead = 0}).value());
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(Lower, LeadOfZeroDeadlocksOneFOneBWheneverTwoRanksAlternate) {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const absl::Status status =
          Validate(Lower(OneFOneB({p, m}).value(), {.receive_lead = 0}).value());
      const bool deadlocks = p >= 2 && m >= 2;
      EXPECT_EQ(status.ok(), !deadlocks) << "p=" << p << " m=" << m << ": " << status;
    }
  }
}

TEST(Lower, RefusesALoweredSchedule) {
  const absl::Status status = Lower(Lower(OneFOneB({2, 2}).value()).value()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0, position 1 (stage 0 SEND_F micro-batch 0)"));
}

TEST(Lower, RefusesANegativeLead) {
  EXPECT_EQ(Lower(GPipe({2, 2}).value(), {.receive_lead = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Lower, RefusesAMessageThatNobodyReads) {
  const Schedule compute = FromText({0, 1}, 1, {"F0.0 BW0.0", "BW1.0"});
  const absl::Status status = Lower(compute).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 lacks stage 1 F micro-batch 0"));
}

TEST(Lower, RefusesADoubledAction) {
  const Schedule compute = FromText({0, 1}, 1, {"F0.0 F0.0 BW0.0", "F1.0 BW1.0"});
  EXPECT_EQ(Lower(compute).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Lower, RefusesAPlacementOutsideTheRanks) {
  EXPECT_EQ(Lower(FromText({0, 2}, 1, {"F0.0", "F1.0"})).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace stagecoach::schedule
