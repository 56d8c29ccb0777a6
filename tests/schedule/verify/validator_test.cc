#include "schedule/verify/validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using absl::StatusCode::kFailedPrecondition;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;

// The valid schedule of two ranks and two micro-batches that the cases below modify.
constexpr char kRank0[] = "F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0";
constexpr char kRank1[] = "RECV_F1.0 F1.0 RECV_F1.1 BW1.0 SEND_B1.0 F1.1 BW1.1 SEND_B1.1 STEP1";

absl::Status ValidateText(const std::string& rank0, const std::string& rank1) {
  return Validate(FromText({0, 1}, 2, {rank0, rank1}));
}

TEST(Validate, AcceptsTheScheduleFromWhichTheCasesDepart) {
  EXPECT_TRUE(ValidateText(kRank0, kRank1).ok()) << ValidateText(kRank0, kRank1);
}

TEST(Validate, AcceptsSplitBackwardPasses) {
  const absl::Status status = Validate(Lower(HandwrittenH1()).value());
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Validate, AcceptsSeveralStagesPerRank) {
  const absl::Status status = Validate(Lower(HandwrittenV()).value());
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Validate, AcceptsARankWithoutStages) {
  EXPECT_TRUE(Validate(FromText({0}, 1, {"F0.0 BW0.0 STEP0", ""})).ok());
}

// Every row is what rank 0 does; rank 1 does kRank1.
TEST(Validate, RefusesAndSaysWhy) {
  const Refusal<std::string> refusals[] = {
      {"F1.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
       "rank 0, position 0 (stage 1 F micro-batch 0): that stage is on rank 1"},
      {"F5.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
       "the schedule has 2 stages"},
      {"F0.2 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
       "the schedule has 2 micro-batches"},
      {"F0.0 F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
       "rank 0, position 1 (stage 0 F micro-batch 0): it has been performed before; remove one"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 W0.0 BW0.1 STEP0",
       "rank 0, position 7 (stage 0 W micro-batch 0): it has been performed before; remove one"},
      {"F0.0", "rank 0: it has 1 actions, fewer than the 2 forward"},
      {"SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
       "rank 0: stage 0 F micro-batch 0 is missing"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 B0.0 BW0.1 STEP0",
       "rank 0: stage 0 W micro-batch 0 is missing"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1", "stage 0 has no STEP"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 STEP0 BW0.1",
       "rank 0, position 7 (stage 0 STEP): gradients are not complete yet; it must come after "
       "stage 0 BW micro-batch 1"},
      {"F0.0 SEND_F0.0 RECV_B0.0 RECV_B0.1 BW0.0 BW0.1 F0.1 SEND_F0.1 STEP0",
       "rank 0, position 5 (stage 0 BW micro-batch 1): must come after stage 0 F micro-batch 1"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 W0.0 B0.0 BW0.1 STEP0",
       "W needs the gradients that B has kept"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.1 BW0.0 STEP0",
       "gradients are summed in micro-batch order"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 B0.0 BW0.1 W0.0 STEP0",
       "gradients are summed in micro-batch order"},
      {"SEND_F0.0 F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
       "a buffer is sent after it is filled"},
      {"F0.0 SEND_F0.0 F0.1 SEND_F0.1 BW0.0 RECV_B0.0 RECV_B0.1 BW0.1 STEP0",
       "its input's receive must be posted first"},
      {"F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
       "rank 0: stage 0 SEND_F micro-batch 0 is missing"},
      {"F0.0 SEND_F0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0",
       "rank 0: stage 0 RECV_B micro-batch 0 is missing"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 REDUCE0 BW0.1 STEP0",
       "rank 0, position 7 (stage 0 REDUCE): gradients are not complete yet"},
      {"F0.0 SEND_F0.0 RECV_B0.0 F0.1 SEND_F0.1 RECV_B0.1 BW0.0 BW0.1 STEP0 REDUCE0",
       "rank 0, position 8 (stage 0 STEP): it must come after stage 0 REDUCE"},
  };
  ExpectRefusals([](const std::string& rank0) { return ValidateText(rank0, kRank1); }, refusals,
                 kFailedPrecondition);
}

TEST(Validate, RefusesPlacementsStagesOfOneRankAndForwardSchedules) {
  ExpectRefusals(
      {
          {Validate(FromText({}, 1, {""})), "at least 1 stage and 1 micro-batch"},
          {Validate(FromText({0}, 0, {""})), "at least 1 stage and 1 micro-batch"},
          {Validate(FromText({0, 7}, 1, {"F0.0", "F1.0"})),
           "stage 1 is placed on rank 7, but the schedule has 2 ranks"},
          {ValidateText(kRank0, std::string("SEND_F1.0 ") + kRank1),
           "rank 1, position 0 (stage 1 SEND_F micro-batch 0): the stage has no neighbor"},
          {Validate(FromText({0, 0}, 1, {"F0.0 SEND_F0.0 F1.0"})),
           "the neighboring stage is on the same rank"},
          {Validate(FromText({0}, 1, {"F0.0 STEP0"})), "has nothing to reduce or to step with"},
          {Validate(FromText({0, 0}, 1, {"F1.0 F0.0"})), "it reads the previous stage's output"},
          {Validate(FromText({0, 0}, 1, {"F0.0 F1.0 BW0.0 BW1.0 STEP0 STEP1"})),
           "it reads the gradient of the next stage's input"},
          {Validate(FromText({0, 1}, 1, {"F0.0 SEND_F0.0 RECV_B0.0", "RECV_F1.0 F1.0"})),
           "a schedule without backward passes has no gradients"},
      },
      kFailedPrecondition);
}

TEST(Validate, AcceptsAStashThatIsMovedToTheHostAndBack) {
  EXPECT_TRUE(Validate(FromText({0}, 1, {"F0.0 OFFLOAD0.0 RELEASE0.0 FETCH0.0 BW0.0 STEP0"})).ok());
}

TEST(Validate, RefusesStashesThatAreMovedOutOfOrder) {
  const Refusal<std::string> refusals[] = {
      {"F0.0 OFFLOAD0.0 RELEASE0.0 BW0.0 STEP0", "stage 0 FETCH micro-batch 0 is missing"},
      {"F0.0 RELEASE0.0 FETCH0.0 BW0.0 STEP0", "stage 0 OFFLOAD micro-batch 0 is missing"},
      {"F0.0 OFFLOAD0.0 FETCH0.0 BW0.0 STEP0", "stage 0 RELEASE micro-batch 0 is missing"},
      {"OFFLOAD0.0 F0.0 RELEASE0.0 FETCH0.0 BW0.0 STEP0", "it moves what forward has kept"},
      {"F0.0 RELEASE0.0 OFFLOAD0.0 FETCH0.0 BW0.0 STEP0", "it waits until that is done"},
      {"F0.0 OFFLOAD0.0 FETCH0.0 RELEASE0.0 BW0.0 STEP0", "only what has left can come back"},
      {"F0.0 OFFLOAD0.0 RELEASE0.0 BW0.0 FETCH0.0 STEP0", "it reads what FETCH brings back"},
      {"F0.0 OFFLOAD0.0 OFFLOAD0.0 RELEASE0.0 FETCH0.0 BW0.0 STEP0",
       "position 2 (stage 0 OFFLOAD micro-batch 0): it has been performed before"},
      {"F0.0 OFFLOAD0.0 RELEASE0.0 FETCH0.0", "a schedule without backward passes keeps nothing"},
  };
  ExpectRefusals([](const std::string& list) { return Validate(FromText({0}, 1, {list})); },
                 refusals, kFailedPrecondition);
}

TEST(Validate, RefusesAStepOfAMicroBatch) {
  Schedule schedule = Lower(OneFOneB({1, 1}).value()).value();
  schedule.actions[0].back().micro_batch = MicroBatch(0);
  EXPECT_THAT(Validate(schedule), StatusIs(kFailedPrecondition, "a STEP has no micro-batch"));
}

TEST(Validate, RefusesReceivesOutOfTheSendersOrder) {
  const absl::Status status =
      ValidateText(kRank0, "RECV_F1.1 RECV_F1.0 F1.0 BW1.0 SEND_B1.0 F1.1 BW1.1 SEND_B1.1 STEP1");
  ExpectRefusals({
      {status, "rank 1, position 1 (stage 1 RECV_F micro-batch 0): out of order",
       kFailedPrecondition},
      {status, "the later stage 0 SEND_F micro-batch 1", kFailedPrecondition},
  });
}

// Activations and gradients of different lanes share the order of their pair of ranks.
TEST(Validate, RefusesReceivesOutOfOrderAcrossLanes) {
  Schedule schedule = Lower(HandwrittenV()).value();
  std::vector<Action>& list = schedule.actions[0];
  const auto gradient = std::find(
      list.begin(), list.end(),
      Action{.op = Op::kReceiveGradient, .stage = StageId(0), .micro_batch = MicroBatch(0)});
  const Action moved = *gradient;
  list.erase(gradient);
  list.insert(list.begin(), moved);
  EXPECT_THAT(Validate(schedule), StatusIs(kFailedPrecondition, "out of order"));
}

TEST(Validate, AcceptsAReductionBetweenBackwardPassesAndStep) {
  const Schedule lowered = Lower(OneFOneB({2, 2}).value(), {.reduce_gradients = true}).value();
  EXPECT_TRUE(Validate(lowered).ok()) << Validate(lowered);
}

TEST(Validate, AcceptsUnshardAndReshardAnywhereAndOften) {
  EXPECT_TRUE(ValidateText(std::string("UNSHARD0 RESHARD0 UNSHARD0 ") + kRank0, kRank1).ok());
}

TEST(Validate, AcceptsAnOverlappedPair) {
  EXPECT_TRUE(Validate(Lower(FromText({0}, 2, {"F0.0 F0.1+ BW0.0 BW0.1"})).value()).ok());
}

TEST(Validate, RefusesPairsThatCannotBeOverlapped) {
  for (const char* list : {"F0.0+ BW0.0 F0.1 BW0.1",  // the same micro-batch
                           "F0.0+ F0.1 BW0.0 BW0.1",  // both forward
                           "F0.0 F0.1 BW0.0 BW0.1+",  // nothing follows
                           "F0.0 F0.1 B0.0 W0.0+ B0.1 W0.1"}) {
    Schedule lowered = FromText({0}, 2, {std::string(list)});
    lowered.actions[0].push_back({.op = Op::kStep, .stage = StageId(0)});
    EXPECT_THAT(Validate(lowered),
                StatusIs(kFailedPrecondition,
                         "it overlaps the next action, but the two are neither an F and"));
  }
}

TEST(FindViolation, NamesRankPositionAndAction) {
  const std::optional<Violation> violation = FindViolation(FromText(
      {0, 1}, 2, {kRank0, "F1.0 RECV_F1.0 RECV_F1.1 BW1.0 SEND_B1.0 F1.1 BW1.1 SEND_B1.1 STEP1"}));
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->rank, Rank(1));
  EXPECT_EQ(violation->position, 0);
  EXPECT_EQ(violation->action,
            (Action{.op = Op::kForward, .stage = StageId(1), .micro_batch = MicroBatch(0)}));
  EXPECT_TRUE(violation->cycle.empty());
}

TEST(FindViolation, OfAMissingActionHasNoPosition) {
  const std::optional<Violation> violation =
      FindViolation(FromText({0}, 2, {"F0.0 F0.1 BW0.0 STEP0"}));
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->rank, Rank(0));
  EXPECT_EQ(violation->position, -1);
  EXPECT_EQ(violation->action,
            (Action{.op = Op::kBackwardInput, .stage = StageId(0), .micro_batch = MicroBatch(1)}));
}

}  // namespace
}  // namespace stagecoach::schedule
