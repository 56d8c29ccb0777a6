#include "engine/diagnosis/first_stalled_rank.h"

#include <vector>

#include "engine/diagnosis/messages.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/diagnosis/recorded_ranks.h"

namespace stagecoach::engine {
namespace {

using schedule::Op;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns the records of ranks 0 to 3 of a pipeline; rank 3 waits for rank 2, rank 1 for rank 2's
// gradient, and rank 0 for rank 1's.
std::vector<RankRecord> Pipeline(const RecordedRank& third) {
  return {RecordedRank(0, 4).Add(Op::kBackward, 1, {120, 0, 0}, Awaited::kMessage, 1),
          RecordedRank(1, 4)
              .Add(Op::kForward, 3, {80, 82, 88}, Awaited::kMessage, 0)
              .Add(Op::kSendActivation, 3, {90, 90, 95})
              .Add(Op::kBackward, 2, {100, 0, 0}, Awaited::kMessage, 2),
          third, RecordedRank(3, 4).Add(Op::kForward, 3, {110, 0, 0}, Awaited::kMessage, 2)};
}

TEST(FirstStalledRank, IsWhereARankWasKilledWhileItComputed) {
  std::vector<RankRecord> ranks =
      Pipeline(RecordedRank(2, 4).Add(Op::kForward, 3, {85, 96, 0}, Awaited::kMessage, 1));
  for (const size_t other : {0U, 1U, 3U}) ranks[other].closed_ns = 2'000'000'000;
  const FirstStalledRank stop = FindFirstStalledRank(ranks);
  EXPECT_THAT(stop.devices, ElementsAre(2));
  EXPECT_EQ(
      stop.sentence,
      "rank 2 (stage 2, replica 0) stopped first: in the forward pass of micro-batch 3 in "
      "step 57, 24.0 ms before the last action of another rank; rank 1 waited for its gradient "
      "of micro-batch 2, rank 3 waited for its activation of micro-batch 3");
}

// Rank 1, which it waits for, is itself only waiting.
TEST(FirstStalledRank, IsTheRankThatWasKilledEvenIfItWaited) {
  std::vector<RankRecord> ranks = {
      RecordedRank(0, 3).Add(Op::kForward, 5, {50, 50, 0}).Closed(300),
      RecordedRank(1, 3).Add(Op::kForward, 5, {60, 0, 0}, Awaited::kMessage, 0).Closed(310),
      RecordedRank(2, 3).Add(Op::kForward, 5, {70, 0, 0}, Awaited::kMessage, 1)};
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(2));
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence,
              HasSubstr("waiting for the activation of micro-batch 5 from rank 1"));
}

// All have ended by themselves, as after the deadline of a wait.
TEST(FirstStalledRank, IsTheHangThatAllOthersWaitFor) {
  std::vector<RankRecord> ranks =
      Pipeline(RecordedRank(2, 4).Add(Op::kBackward, 2, {70, 71, 0}, Awaited::kMessage, 3));
  for (RankRecord& rank : ranks) rank.closed_ns = 5'000'000'000;
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(2));
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence,
              HasSubstr("in the backward pass of micro-batch 2"));
  for (RankRecord& rank : ranks) rank.closed_ns = 0;  // as in one process that inspects itself
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(2));
}

TEST(FirstStalledRank, IsTheReceiverOfAMessageThatWasSentButNeverCame) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 2)
          .Add(Op::kSendActivation, 3, {10, 10, 12})
          .Add(Op::kBackward, 0, {13, 0, 0}, Awaited::kMessage, 1)
          .Closed(900),
      RecordedRank(1, 2).Add(Op::kForward, 3, {9, 0, 0}, Awaited::kMessage, 0).Closed(950)};
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(1));
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence,
              HasSubstr("waiting for the activation of micro-batch 3 from rank 0"));
}

// A send of the previous run does not count, nor does one after the receiver had given up.
TEST(FirstStalledRank, IsTheSenderOfAMessageThatWasNotSentInTime) {
  const RecordedRank receiver =
      RecordedRank(1, 2).Add(Op::kForward, 3, {20, 0, 0}, Awaited::kMessage, 0).Closed(900);
  const std::vector<RankRecord> before = {RecordedRank(0, 2)
                                              .In(56)
                                              .Add(Op::kSendActivation, 3, {10, 10, 12})
                                              .In(57)
                                              .Add(Op::kForward, 3, {13, 13, 0})
                                              .Closed(950),
                                          receiver};
  EXPECT_THAT(FindFirstStalledRank(before).devices, ElementsAre(0));
  const auto sent_at = [&](int64_t time) {
    return FindFirstStalledRank(
               std::vector<RankRecord>{RecordedRank(0, 2)
                                           .Add(Op::kSendActivation, 3, {890, 890, time})
                                           .Add(Op::kForward, 4, {921, 921, 0})
                                           .Closed(950),
                                       receiver})
        .devices;
  };
  EXPECT_THAT(sent_at(900), ElementsAre(1));
  EXPECT_THAT(sent_at(901), ElementsAre(0));
}

// Rank 0 is in the next step: its recorder no longer has what it sent in the previous one.
TEST(FirstStalledRank, IsNotASenderThatHasForgottenTheStep) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 2).In(58).Add(Op::kForward, 0, {30, 30, 0}).Closed(990),
      RecordedRank(1, 2).Add(Op::kForward, 3, {20, 0, 0}, Awaited::kMessage, 0).Closed(900)};
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(1));
}

TEST(FirstStalledRank, OfACycleIsAllOfIt) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 3).Add(Op::kBackward, 3, {10, 0, 0}, Awaited::kMessage, 1),
      RecordedRank(1, 3).Add(Op::kBackward, 4, {11, 0, 0}, Awaited::kMessage, 2),
      RecordedRank(2, 3).Add(Op::kForward, 5, {12, 0, 0}, Awaited::kMessage, 1)};
  const FirstStalledRank stop = FindFirstStalledRank(ranks);
  EXPECT_THAT(stop.devices, ElementsAre(1, 2));
  EXPECT_EQ(stop.sentence,
            "ranks 1, 2 wait for one another in step 57: rank 1 for its gradient of micro-batch 4 "
            "(rank 2), rank 2 for its activation of micro-batch 5 (rank 1)");
}

TEST(FirstStalledRank, IsTheRankThatDidNotTakeAMessage) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 2).Add(Op::kSendActivation, 4, {10, 0, 0}, Awaited::kTaken, 1).Closed(500),
      RecordedRank(1, 2).Add(Op::kForward, 2, {5, 5, 0}).Closed(510)};
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(1));
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence,
              HasSubstr("rank 0 waited for it to take the message "
                        "before the activation of micro-batch 4"));
  const std::vector<RankRecord> at_the_end = {
      RecordedRank(0, 2).Add(Op::kSendActivation, 4, {10, 0, 0}, Awaited::kOwnTaken, 1).Closed(500),
      RecordedRank(1, 2).Add(Op::kForward, 2, {5, 5, 0}).Closed(510)};
  EXPECT_THAT(FindFirstStalledRank(at_the_end).sentence,
              HasSubstr("rank 0 waited for it to take the activation of micro-batch 4"));
}

TEST(FirstStalledRank, IsTheRankThatDidNotComeToACollective) {
  const auto waits = [](int device) {
    return RecordedRank(device, 3)
        .Add(Op::kExchangeNorms, -1, {40, 41, 0}, Awaited::kAll)
        .Closed(700);
  };
  const std::vector<RankRecord> ranks = {
      waits(0), RecordedRank(1, 3).Add(Op::kBackward, 7, {30, 30, 0}).Closed(710), waits(2)};
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(1));
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence,
              HasSubstr("; rank 0 waited for it, rank 2 waited for it"));
}

// Only the rank's own replicas count; those of other ranks do not.
TEST(FirstStalledRank, IsTheReplicaThatDidNotComeToTheUpdate) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 4, 2).Add(Op::kStep, -1, {40, 0, 0}, Awaited::kReplicas).Closed(700),
      RecordedRank(1, 4, 2).Add(Op::kBackward, 7, {41, 41, 0}).Closed(710),
      RecordedRank(2, 4, 2).Add(Op::kStep, -1, {20, 21, 22}).Closed(705),
      RecordedRank(3, 4, 2).Add(Op::kForward, 7, {20, 21, 22}).Closed(720)};
  EXPECT_THAT(FindFirstStalledRank({ranks[0], ranks[1]}).devices, ElementsAre(1));
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence, Not(HasSubstr("rank 3 (")));
}

// A stage's neighbors are those of its own replica.
TEST(FirstStalledRank, IsOfTheReplicaThatIsWaitedFor) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 4, 2).Add(Op::kForward, 1, {10, 10, 0}),
      RecordedRank(1, 4, 2).Add(Op::kForward, 1, {30, 30, 0}),
      RecordedRank(2, 4, 2).Add(Op::kForward, 1, {5, 0, 0}, Awaited::kMessage, 0).Closed(90),
      RecordedRank(3, 4, 2).Add(Op::kForward, 1, {5, 0, 0}, Awaited::kMessage, 0).Closed(90)};
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence,
              HasSubstr("; rank 2 waited for its activation of micro-batch 1"));
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(0));
}

// Rank 0 was made to end while it waited for rank 1, which had reported its failure.
TEST(FirstStalledRank, IsFoundThroughRanksThatHaveEnded) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 3).Add(Op::kBackward, 1, {10, 0, 0}, Awaited::kMessage, 1),
      RecordedRank(1, 3).Add(Op::kBackward, 1, {20, 0, 0}, Awaited::kMessage, 2).Closed(500),
      RecordedRank(2, 3).Add(Op::kForward, 4, {30, 30, 0})};
  EXPECT_THAT(FindFirstStalledRank(ranks).devices, ElementsAre(2));
}

TEST(FirstStalledRank, IsBetweenStepsWhereARankHadNotBegunTheNextOne) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 2).Add(Op::kStep, -1, {10, 10, 12}),
      RecordedRank(1, 2).In(58).Add(Op::kForward, 0, {20, 0, 0}, Awaited::kMessage, 0).Closed(99)};
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence,
              HasSubstr("rank 0 (stage 0, replica 0) stopped first: after step 57"));
}

TEST(FirstStalledRank, IsBeforeTheFirstStepWhereARankHasNoneRecorded) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 2).Add(Op::kBackward, 0, {20, 0, 0}, Awaited::kMessage, 1).Closed(99),
      RecordedRank(1, 2)};
  EXPECT_EQ(FindFirstStalledRank(ranks).sentence,
            "rank 1 (stage 1, replica 0) stopped first: before its first step; rank 0 waited for "
            "its gradient of micro-batch 0");
  EXPECT_EQ(FindFirstStalledRank({ranks[1], ranks[1]}).sentence, "");
}

TEST(FirstStalledRank, MayBeInAnEvaluation) {
  const std::vector<RankRecord> ranks = {
      RecordedRank(0, 1).Evaluates().Add(Op::kForward, 0, {20, 20, 0}).Closed(99)};
  EXPECT_THAT(FindFirstStalledRank(ranks).sentence, HasSubstr("in an evaluation after step 57"));
}

// ---- Clocks ----

// Returns records in which the clock of rank 1 is `behind` ms behind that of rank 0.
std::vector<RankRecord> TwoHosts(int64_t behind) {
  return {
      RecordedRank(0, 2)
          .At("here")
          .Add(Op::kSendActivation, 3, {1010, 1010, 1012})
          .Add(Op::kBackward, 3, {1013, 1040, 1050}, Awaited::kMessage, 1)
          .Add(Op::kForward, 4, {1051, 1051, 0})
          .Closed(1300),
      RecordedRank(1, 2)
          .At("there")
          .Add(Op::kForward, 3, {1005 - behind, 1011 - behind, 1020 - behind}, Awaited::kMessage, 0)
          .Add(Op::kSendGradient, 3, {1030 - behind, 1030 - behind, 1032 - behind})
          .Add(Op::kForward, 4, {1033 - behind, 0, 0}, Awaited::kMessage, 0)
          .Closed(1290 - behind)};
}

TEST(Clocks, AreAlignedWhereAMessageWouldBeReadBeforeItWasSent) {
  for (const int64_t behind : {500, -500}) {
    std::vector<RankRecord> ranks = TwoHosts(behind);
    AlignClocks(ranks);
    const auto& [host, other] = std::tie(ranks[0].actions, ranks[1].actions);
    EXPECT_LE(host[0].begun_ns, other[0].started_ns);
    EXPECT_LE(other[1].begun_ns, host[1].started_ns);
    EXPECT_EQ(host[2].ended_ns, 0);
    EXPECT_EQ(other[2].started_ns, 0);
    EXPECT_EQ(other[1].begun_ns - other[0].started_ns, 19'000'000);
    EXPECT_EQ(ranks[1].closed_ns - other[0].started_ns, 279'000'000);
  }
}

// Among several messages in one direction, the one read soonest after it was sent is the most
// informative.
TEST(Clocks, AreAlignedByTheLeastSlackOfAllMessages) {
  for (const int64_t first_slack : {-3, -7}) {
    const int64_t second_slack = -10 - first_slack;
    std::vector<RankRecord> ranks = {
        RecordedRank(0, 2)
            .At("here")
            .Add(Op::kSendActivation, 3, {100, 100, 101})
            .Add(Op::kSendActivation, 4, {200, 200, 201}),
        RecordedRank(1, 2)
            .At("there")
            .Add(Op::kForward, 3, {90, 100 + first_slack, 150}, Awaited::kMessage, 0)
            .Add(Op::kForward, 4, {190, 200 + second_slack, 250}, Awaited::kMessage, 0)};
    AlignClocks(ranks);
    EXPECT_EQ(ranks[0].actions[0].begun_ns, 100'000'000);
    EXPECT_EQ(ranks[1].actions[0].begun_ns, 97'000'000);
  }
}

TEST(Clocks, StayAsTheyAreWhereTheyAgree) {
  std::vector<RankRecord> ranks = TwoHosts(0);
  AlignClocks(ranks);
  EXPECT_EQ(ranks[0].actions, TwoHosts(0)[0].actions);
  EXPECT_EQ(ranks[1].actions, TwoHosts(0)[1].actions);
}

// No shift satisfies both messages.
TEST(Clocks, StayAsTheyAreWhereTheyDrift) {
  std::vector<RankRecord> ranks = TwoHosts(500);
  ranks[0].actions[1].started_ns = 100'000'000;
  const std::vector<FlightEvent> before = ranks[1].actions;
  AlignClocks(ranks);
  EXPECT_EQ(ranks[1].actions, before);
}

}  // namespace
}  // namespace stagecoach::engine
