// The validator's verdicts on collectives.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedule/generators/generators.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/collective_schedules.h"
#include "tests/schedule/handwritten.h"
#include "tests/schedule/random_costs.h"

namespace stagecoach::schedule {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Expects that violation under any transfers.
void ExpectViolation(const Schedule& schedule, int rank, int position, const std::string& reason) {
  for (const Transfers transfers : kAllTransfers) {
    const std::optional<Violation> violation = FindViolation(schedule, transfers);
    ASSERT_TRUE(violation.has_value());
    EXPECT_EQ(violation->rank, Rank(rank));
    EXPECT_EQ(violation->position, position);
    EXPECT_THAT(violation->reason, HasSubstr(reason));
    EXPECT_TRUE(violation->cycle.empty());
  }
}

// Expects a deadlock with that drawing of its cycle under any transfers.
void ExpectCycle(const Schedule& schedule, const std::string& drawing) {
  for (const Transfers transfers : kAllTransfers) {
    const std::optional<Violation> violation = FindViolation(schedule, transfers);
    ASSERT_TRUE(violation.has_value());
    EXPECT_THAT(violation->reason, HasSubstr("deadlock"));
    EXPECT_EQ(DrawCycle(schedule, violation->cycle), drawing);
  }
}

TEST(ValidateCollectives, NamesThePlaceAndTheReason) {
  struct Row {
    Schedule schedule;
    int rank, position;
    const char* reason;
  };
  const std::string start_0 = absl::StrCat(kStart0, " STEP0 RESULTS0");
  const Row rows[] = {
      {AfterStart("NORM0 STEP0", "STEP1"), 1, -1,
       "NORM of group 0 is missing; rank 0 performs NORM of group 0, \"all\""},
      {AfterStart("STEP0", "STEP1 RESULTS0"), 0, -1, "RESULTS of group 0 is missing"},
      {AfterStart("NORM0 NORM0 STEP0", "NORM0 STEP1"), 0, 5, "it has been performed before"},
      // The groups.
      {AfterStart("NORM0 STEP0", "NORM1 STEP1"), 1, 4,
       "another group: rank 0 performs NORM of group 0, \"all\""},
      {AfterStart("NORM2 STEP0", "NORM2 STEP1"), 1, 4, "the rank is not in that group, \"one\""},
      {AfterStart("NORM2 STEP0", "STEP1"), 0, 4, "its group, \"one\", has 1 of the 2 ranks"},
      {AfterStart("NORM3 STEP0", "NORM0 STEP1"), 0, 4, "the schedule has 3 groups"},
      {AfterStart("NORM0 NORM1 STEP0", "NORM0 STEP1"), 0, 5,
       "every rank performs NORM of group 0, \"all\" already; remove it"},
      {AfterStart("NORM0 STEP0", "NORM0 NORM1 STEP1"), 1, 5, "remove it"},
      // Ties and norms come between the last gradients and the steps.
      {AfterStart("NORM0 TIES0 STEP0", "NORM0 TIES0 STEP1"), 0, 4,
       "it must come after TIES of group 0, which completes the gradients"},
      {AfterStart("STEP0 TIES0", "TIES0 STEP1"), 0, 5,
       "it must come before stage 0 STEP, which updates by the sums"},
      {WithGroups("F0.0 SEND_F0.0 RECV_B0.0 TIES0 BW0.0 STEP0",
                  "RECV_F1.0 F1.0 BW1.0 SEND_B1.0 TIES0 STEP1"),
       0, 3, "gradients are not complete yet"},
      {WithGroups("F0.0 SEND_F0.0 RECV_B0.0 NORM0 BW0.0 STEP0",
                  absl::StrCat(kStart1, " NORM0 STEP1")),
       0, 3, "gradients are not complete yet; it must come after stage 0 BW"},
      {AfterStart("NORM0 REDUCE0 STEP0", "NORM0 STEP1"), 0, 4, "it must come after stage 0 REDUCE"},
      {AfterStart("STEP0 NORM0", "NORM0 STEP1"), 0, 5, "it must come before stage 0 STEP"},
      {WithGroups("F0.0 SEND_F0.0 NORM0", "RECV_F1.0 F1.0 NORM0"), 0, 2, "has no gradients"},
      // Results come after the loss.
      {WithGroups(start_0, "RECV_F1.0 RESULTS0 F1.0 BW1.0 SEND_B1.0 STEP1"), 1, 1,
       "the results are not complete yet; it must come after stage 1 BW"},
      {WithGroups(start_0, "RECV_F1.0 F1.0 RESULTS0 B1.0 SEND_B1.0 W1.0 STEP1"), 1, 2,
       "the results are not complete yet; it must come after stage 1 B"},
      {WithGroups("F0.0 SEND_F0.0 RESULTS0", "RECV_F1.0 RESULTS0 F1.0"), 1, 1,
       "the results are not complete yet; it must come after stage 1 F"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.reason);
    ExpectViolation(row.schedule, row.rank, row.position, row.reason);
  }
  EXPECT_EQ(FindViolation(AfterStart("TIES0 NORM0 STEP0", "TIES0 NORM0 STEP1")), std::nullopt);
}

TEST(ValidateCollectives, RefusesGroupsOfNoOrUnsortedRanks) {
  for (const std::vector<Rank>& ranks :
       {std::vector<Rank>{}, {Rank(1), Rank(0)}, {Rank(0), Rank(0)}, {Rank(0), Rank(2)}}) {
    Schedule schedule = AfterStart("STEP0", "STEP1");
    schedule.groups[1].ranks = ranks;
    ExpectViolation(schedule, -1, -1, "group 1 must have at least 1 rank, in ascending order");
  }
}

// Rank 0 has the norms first, rank 1 the results.
TEST(ValidateCollectives, FindsTheShortestCycleOfAnotherOrder) {
  ExpectCycle(AfterStart("NORM0 STEP0 RESULTS0", "RESULTS0 NORM0 STEP1"),
              "  ┌─▶ rank 0 stands before NORM0 (position 4) until\n"
              "  │   rank 1 has come to NORM0 (position 5)\n"
              "  │   rank 1 stands before RESULTS0 (position 4) until\n"
              "  └── rank 0 has come to RESULTS0 (position 6)\n");
}

// Ranks 2 and 3 follow rank 0, so that the cycle of two is one of many.
TEST(ValidateCollectives, ACycleAmongManyRanksHasTwo) {
  Schedule schedule =
      FromText({0, 1, 2, 3}, 1,
               {"F0.0 SEND_F0.0 RECV_B0.0 BW0.0 NORM0 STEP0 RESULTS0",
                "RECV_F1.0 F1.0 SEND_F1.0 RECV_B1.0 BW1.0 SEND_B1.0 NORM0 STEP1 RESULTS0",
                "RECV_F2.0 F2.0 SEND_F2.0 RECV_B2.0 BW2.0 SEND_B2.0 NORM0 STEP2 RESULTS0",
                "RECV_F3.0 F3.0 BW3.0 SEND_B3.0 RESULTS0 NORM0 STEP3"});
  schedule.groups = {{"all", {Rank(0), Rank(1), Rank(2), Rank(3)}}};
  for (const Transfers transfers : kAllTransfers) {
    const std::optional<Violation> violation = FindViolation(schedule, transfers);
    ASSERT_TRUE(violation.has_value());
    EXPECT_EQ(violation->cycle.size(), 2);
  }
}

// Rank 1 reaches the norms before it sends the gradient that rank 0 needs to reach them.
TEST(ValidateCollectives, FindsTheCycleOfACollectiveAndAMessage) {
  ExpectCycle(WithGroups("F0.0 SEND_F0.0 RECV_B0.0 BW0.0 NORM0 STEP0",
                         "RECV_F1.0 F1.0 BW1.0 NORM0 SEND_B1.0 STEP1"),
              "  ┌─▶ rank 0 stands before BW0.0 (position 3) until\n"
              "  │   rank 1 has performed SEND_B1.0 (position 4)\n"
              "  │   rank 1 stands before NORM0 (position 3) until\n"
              "  └── rank 0 has come to NORM0 (position 4)\n");
}

// The send waits for a receive that is posted only after the collective.
TEST(ValidateCollectives, FindsTheCycleOfACollectiveAndASend) {
  ExpectCycle(WithGroups("F0.0 SEND_F0.0 RESULTS0 RECV_B0.0 BW0.0 STEP0",
                         "RECV_F1.0 F1.0 BW1.0 SEND_B1.0 RESULTS0 STEP1"),
              "  ┌─▶ rank 0 stands before RESULTS0 (position 2) until\n"
              "  │   rank 1 has come to RESULTS0 (position 4)\n"
              "  │   rank 1 stands before SEND_B1.0 (position 3) until\n"
              "  └── rank 0 has performed RECV_B0.0 (position 3)\n");
}

// A receive that is posted before a collective and answered after it holds up the collective if
// transfers are in groups, and otherwise is taken for a message of the collective.
TEST(ValidateCollectives, FindsAMessageThatCrossesACollective) {
  const Schedule crossing = WithGroups("F0.0 SEND_F0.0 RECV_B0.0 RESULTS0 BW0.0 STEP0",
                                       "RECV_F1.0 F1.0 BW1.0 RESULTS0 SEND_B1.0 STEP1");
  const std::optional<Violation> grouped = FindViolation(crossing, Transfers::kGrouped);
  ASSERT_TRUE(grouped.has_value());
  EXPECT_EQ(DrawCycle(crossing, grouped->cycle),
            "  ┌─▶ rank 0 stands before RECV_B0.0 (position 2) until\n"
            "  │   rank 1 has performed SEND_B1.0 (position 4)\n"
            "  │   rank 1 stands before RESULTS0 (position 3) until\n"
            "  └── rank 0 has come to RESULTS0 (position 3)\n");
  const absl::Status separate = Validate(crossing, Transfers::kSeparate);
  EXPECT_THAT(std::string(separate.message()),
              AllOf(StartsWith("rank 0, position 3 (RESULTS of group 0): out of order"),
                    HasSubstr("rank 1 sends that after it")));
}

TEST(ValidateCollectives, RefusesAGroupOfSomethingElse) {
  Schedule schedule = AfterStart("STEP0", "STEP1");
  schedule.actions[1][0].group = GroupId(0);
  ExpectViolation(schedule, 1, 0, "a RECV_F has no group");
}

// Moves actions of one list at random.
Schedule Shuffled(Schedule lowered, std::mt19937& random) {
  for (int64_t i = DrawBelow(4, random); i >= 0; --i) {
    std::vector<Action>& list =
        lowered.actions[static_cast<size_t>(DrawBelow(lowered.num_ranks(), random))];
    const auto from = static_cast<size_t>(DrawBelow(static_cast<int>(list.size()), random));
    const auto to = static_cast<size_t>(DrawBelow(static_cast<int>(list.size()), random));
    const Action moved = list[from];
    list.erase(list.begin() + static_cast<ptrdiff_t>(from));
    list.insert(list.begin() + static_cast<ptrdiff_t>(to), moved);
  }
  return lowered;
}

// The simulator finds independently whether a schedule completes.
TEST(ValidateCollectives, FindsDeadlocksWhereTheSimulatorComesToNoEnd) {
  std::mt19937 random(20260711);
  int ends = 0, deadlocks = 0;
  for (int round = 0; round < 20000; ++round) {
    const Transfers transfers = kAllTransfers[round % 2];
    const Schedule compute = round % 3 == 0 ? ForwardOnly({Rank(0), Rank(1), Rank(2)}, 3, 2).value()
                             : round % 3 == 1 ? OneFOneB({3, 2}).value()
                                              : HandwrittenV();
    const Schedule lowered = Shuffled(Lower(compute, Both(transfers)).value(), random);
    const std::optional<Violation> violation = FindViolation(lowered, transfers);
    if (violation.has_value() && violation->cycle.empty()) continue;
    Costs costs;
    costs.stages.resize(lowered.rank_of_stage.size());
    // A validated schedule ends even if every send waits for its receive.
    const bool simulated_to_end = SimulateDurations(lowered, costs, Sends::kBlocking).ok() &&
                                  (transfers == Transfers::kSeparate ||
                                   SimulateDurations(lowered, costs, Sends::kGrouped).ok());
    EXPECT_EQ(simulated_to_end, !violation.has_value()) << ToText(lowered.actions[0]) << "\n"
                                                        << ToText(lowered.actions[1]);
    ++(violation.has_value() ? deadlocks : ends);
  }
  EXPECT_GT(ends, 500);
  EXPECT_GT(deadlocks, 100);
}

}  // namespace
}  // namespace stagecoach::schedule
