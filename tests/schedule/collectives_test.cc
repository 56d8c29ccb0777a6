// Collectives: where Lower puts them, what the validator says of wrong ones, and how long the
// simulator takes for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedule/files/csv.h"
#include "schedule/files/schedule_file.h"
#include "schedule/generators.h"
#include "schedule/lowering.h"
#include "schedule/memory.h"
#include "schedule/pictures/svg.h"
#include "schedule/pictures/timeline.h"
#include "schedule/simulate.h"
#include "schedule/traces/chrome_trace.h"
#include "schedule/validator.h"
#include "tests/schedule/handwritten.h"
#include "tests/schedule/random_costs.h"

namespace stagecoach::schedule {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr Transfers kAllTransfers[] = {Transfers::kSeparate, Transfers::kGrouped};

LoweringOptions Both(Transfers transfers) {
  return {.exchange_norms = true, .share_results = true, .transfers = transfers};
}

// Two ranks, a micro-batch each way; valid with either kind of transfers.
constexpr char kStart0[] = "F0.0 SEND_F0.0 RECV_B0.0 BW0.0";
constexpr char kStart1[] = "RECV_F1.0 F1.0 BW1.0 SEND_B1.0";

// The two lists as a schedule whose groups are 0: all ranks, 1: all ranks once more, 2: rank 0.
Schedule WithGroups(const std::string& rank0, const std::string& rank1) {
  Schedule schedule = FromText({0, 1}, 1, {rank0, rank1});
  schedule.groups = {{"all", {Rank(0), Rank(1)}}, {"both", {Rank(0), Rank(1)}}, {"one", {Rank(0)}}};
  return schedule;
}
Schedule AfterStart(const std::string& rank0, const std::string& rank1) {
  return WithGroups(absl::StrCat(kStart0, " ", rank0), absl::StrCat(kStart1, " ", rank1));
}

// Expects that violation, whatever the transfers.
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

// Expects a deadlock with that drawing of its cycle, whatever the transfers.
void ExpectCycle(const Schedule& schedule, const std::string& drawing) {
  for (const Transfers transfers : kAllTransfers) {
    const std::optional<Violation> violation = FindViolation(schedule, transfers);
    ASSERT_TRUE(violation.has_value());
    EXPECT_THAT(violation->reason, HasSubstr("deadlock"));
    EXPECT_EQ(DrawCycle(schedule, violation->cycle), drawing);
  }
}

TEST(LowerCollectives, NormsComeBeforeStepsAndResultsAtTheEnd) {
  const Schedule lowered = Lower(OneFOneB({2, 1}).value(), Both(Transfers::kSeparate)).value();
  EXPECT_THAT(ToText(lowered.actions[0]), EndsWith("BW0.0 NORM0 STEP0 RESULTS0"));
  EXPECT_THAT(ToText(lowered.actions[1]), EndsWith("BW1.0 SEND_B1.0 NORM0 STEP1 RESULTS0"));
  EXPECT_THAT(lowered.groups, ElementsAre(CollectiveGroup{"all", {Rank(0), Rank(1)}}));
}

TEST(LowerCollectives, ThereAreNoneUnlessTheyAreAskedFor) {
  EXPECT_TRUE(Lower(OneFOneB({2, 1}).value()).value().groups.empty());
}

TEST(LowerCollectives, EvaluationSharesResultsAndHasNoNorms) {
  const Schedule compute = ForwardOnly({Rank(0), Rank(1)}, 2, 1).value();
  const Schedule lowered = Lower(compute, Both(Transfers::kSeparate)).value();
  EXPECT_EQ(ToText(lowered.actions[0]), "F0.0 SEND_F0.0 RESULTS0");
  EXPECT_EQ(ToText(lowered.actions[1]), "RECV_F1.0 F1.0 RESULTS0");
}

TEST(LowerCollectives, EveryScheduleWithThemIsValid) {
  for (const Generator& generator : Generators()) {
    for (const Transfers transfers : kAllTransfers) {
      const Schedule compute = generator.generate({4, 8}).value();
      const Schedule evaluation = ForwardOnly(compute.rank_of_stage, 4, 8).value();
      for (const Schedule& schedule : {compute, evaluation}) {
        const Schedule lowered = Lower(schedule, Both(transfers)).value();
        EXPECT_TRUE(Validate(lowered, transfers).ok())
            << generator.name << ": " << Validate(lowered, transfers);
      }
    }
  }
}

TEST(AddCollectives, LeavesThoseThatAreThereWhereTheyAre) {
  const Schedule given = AfterStart("NORM1 STEP0 RESULTS0", "NORM1 STEP1 RESULTS0");
  Schedule lowered = given;
  AddCollectives(Both(Transfers::kSeparate), lowered);
  EXPECT_EQ(lowered, given);
}

TEST(AddCollectives, ARankWithoutStagesTakesPart) {
  Schedule lowered = FromText({0}, 1, {"F0.0 BW0.0 STEP0", ""});
  AddCollectives(Both(Transfers::kSeparate), lowered);
  EXPECT_EQ(ToText(lowered.actions[1]), "NORM0 RESULTS0");
  EXPECT_TRUE(Validate(lowered).ok()) << Validate(lowered);
}

TEST(ValidateCollectives, RefusesOneThatIsMissingOnARank) {
  ExpectViolation(AfterStart("NORM0 STEP0", "STEP1"), 1, -1,
                  "NORM of group 0 is missing; rank 0 performs NORM of group 0, \"all\"");
  ExpectViolation(AfterStart("STEP0", "STEP1 RESULTS0"), 0, -1, "RESULTS of group 0 is missing");
}

TEST(ValidateCollectives, RefusesAnotherGroup) {
  ExpectViolation(AfterStart("NORM0 STEP0", "NORM1 STEP1"), 1, 4,
                  "another group: rank 0 performs NORM of group 0, \"all\"");
}

TEST(ValidateCollectives, RefusesAGroupWithoutTheRank) {
  ExpectViolation(AfterStart("NORM2 STEP0", "NORM2 STEP1"), 1, 4,
                  "the rank is not in that group, \"one\"");
}

TEST(ValidateCollectives, RefusesAGroupThatLacksRanks) {
  ExpectViolation(AfterStart("NORM2 STEP0", "STEP1"), 0, 4,
                  "its group, \"one\", has 1 of the 2 ranks");
}

TEST(ValidateCollectives, RefusesAGroupThatIsNotThere) {
  ExpectViolation(AfterStart("NORM3 STEP0", "NORM0 STEP1"), 0, 4, "the schedule has 3 groups");
}

TEST(ValidateCollectives, RefusesGroupsOfNoOrUnsortedRanks) {
  for (const std::vector<Rank>& ranks :
       {std::vector<Rank>{}, {Rank(1), Rank(0)}, {Rank(0), Rank(0)}, {Rank(0), Rank(2)}}) {
    Schedule schedule = AfterStart("STEP0", "STEP1");
    schedule.groups[1].ranks = ranks;
    ExpectViolation(schedule, -1, -1, "group 1 must have at least 1 rank, in ascending order");
  }
}

// As rank 0 has it, the norms come first; as rank 1 has it, the results.
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

// Rank 1 comes to the norms before it sends the gradient that rank 0 needs to come there.
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

// A receive that is posted before a collective and answered after it holds up the collective where
// transfers are in groups, and else is taken for a message of the collective.
TEST(ValidateCollectives, FindsAMessageThatCrossesACollective) {
  const Schedule crossing = WithGroups("F0.0 SEND_F0.0 RECV_B0.0 RESULTS0 BW0.0 STEP0",
                                       "RECV_F1.0 F1.0 RESULTS0 BW1.0 SEND_B1.0 STEP1");
  const std::optional<Violation> grouped = FindViolation(crossing, Transfers::kGrouped);
  ASSERT_TRUE(grouped.has_value());
  EXPECT_EQ(DrawCycle(crossing, grouped->cycle),
            "  ┌─▶ rank 0 stands before RECV_B0.0 (position 2) until\n"
            "  │   rank 1 has performed SEND_B1.0 (position 4)\n"
            "  │   rank 1 stands before RESULTS0 (position 2) until\n"
            "  └── rank 0 has come to RESULTS0 (position 3)\n");
  const absl::Status separate = Validate(crossing, Transfers::kSeparate);
  EXPECT_THAT(std::string(separate.message()),
              AllOf(StartsWith("rank 0, position 3 (RESULTS of group 0): out of order"),
                    HasSubstr("rank 1 sends that after it")));
}

TEST(ValidateCollectives, RefusesOneThatIsDoneTwice) {
  ExpectViolation(AfterStart("NORM0 NORM0 STEP0", "NORM0 STEP1"), 0, 5, "it is done before");
}

TEST(ValidateCollectives, RefusesNormsOfIncompleteGradients) {
  ExpectViolation(WithGroups("F0.0 SEND_F0.0 RECV_B0.0 NORM0 BW0.0 STEP0",
                             absl::StrCat(kStart1, " NORM0 STEP1")),
                  0, 3, "gradients are not complete yet; it must come after stage 0 BW");
  ExpectViolation(AfterStart("NORM0 REDUCE0 STEP0", "NORM0 STEP1"), 0, 4,
                  "it must come after stage 0 REDUCE");
}

TEST(ValidateCollectives, RefusesNormsAfterAStep) {
  ExpectViolation(AfterStart("STEP0 NORM0", "NORM0 STEP1"), 0, 5,
                  "it must come before stage 0 STEP");
}

TEST(ValidateCollectives, RefusesResultsBeforeTheLoss) {
  ExpectViolation(WithGroups(absl::StrCat(kStart0, " STEP0 RESULTS0"),
                             "RECV_F1.0 RESULTS0 F1.0 BW1.0 SEND_B1.0 STEP1"),
                  1, 1, "the results are not complete yet; it must come after stage 1 F");
}

TEST(ValidateCollectives, RefusesNormsWithoutGradients) {
  ExpectViolation(WithGroups("F0.0 SEND_F0.0 NORM0", "RECV_F1.0 F1.0 NORM0"), 0, 2,
                  "has no gradients");
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

// The simulator finds out by itself whether a schedule comes to its end.
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

// Passes of 10 ns, steps of 3; rank 0 comes to the norms at 40, rank 1 at 30.
TEST(SimulateCollectives, StartWhenTheLastRankComesAndTakeTheirTime) {
  Costs costs;
  costs.stages.assign(2, {.forward_ns = 10, .backward_ns = 10, .step_ns = 3});
  costs.collectives = {.norms_ns = 7, .results_ns = 2};
  for (const Sends sends :
       {Sends::kBuffered, Sends::kRendezvous, Sends::kBlocking, Sends::kGrouped}) {
    const Schedule lowered = Lower(OneFOneB({2, 1}).value(), Both(TransfersOf(sends))).value();
    const Simulation simulation =
        Simulate(lowered, costs, {.sends = sends, .keep_trace = true}).value();
    EXPECT_EQ(simulation.step_ns, 40 + 7 + 3 + 2);
    const Action norm = Collective(Op::kExchangeNorms, GroupId(0));
    EXPECT_THAT(simulation.trace.list_of(Rank(0)), Contains(TimedAction{norm, 40, 40, 47}));
    EXPECT_THAT(simulation.trace.list_of(Rank(1)), Contains(TimedAction{norm, 30, 40, 47}));
    for (const RankTimes& rank : simulation.ranks) {
      EXPECT_EQ(rank.busy_ns, 23);
      EXPECT_EQ(rank.communication_ns, 9);
      EXPECT_EQ(rank.busy_ns + rank.idle_ns(), simulation.step_ns);
    }
  }
}

// The gradient is under way until 70, and the norms are of the stream that carries it.
TEST(SimulateCollectives, ComeAfterTheGroupsBeforeThem) {
  const Schedule lowered =
      WithGroups(absl::StrCat(kStart0, " NORM0 STEP0"), absl::StrCat(kStart1, " NORM0 STEP1"));
  Costs costs;
  costs.stages.assign(2, {.forward_ns = 10, .backward_ns = 10});
  costs.links = {{.latency_ns = 20}};
  const Simulation simulation =
      Simulate(lowered, costs, {.sends = Sends::kGrouped, .keep_trace = true}).value();
  const TimedAction& norm = simulation.trace.list_of(Rank(1))[4];
  EXPECT_EQ(norm.reached_ns, 50);
  EXPECT_EQ(norm.start_ns, 80);
}

TEST(SimulateCollectives, NegativeAndExcessiveTimesAreRefused) {
  const Schedule lowered = Lower(OneFOneB({2, 1}).value(), Both(Transfers::kSeparate)).value();
  Costs costs;
  costs.stages.resize(2);
  costs.collectives.norms_ns = -1;
  EXPECT_THAT(std::string(Simulate(lowered, costs).status().message()),
              HasSubstr("norms_ns is -1"));
  costs.collectives = {.results_ns = kMaxTimeNs + 1};
  EXPECT_EQ(Simulate(lowered, costs).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(MemoryOfCollectives, IsResidentInEveryScheduleOfARun) {
  const Schedule training = Lower(OneFOneB({2, 3}).value(), Both(Transfers::kSeparate)).value();
  const Schedule evaluation =
      Lower(ForwardOnly({Rank(0), Rank(1)}, 2, 3).value(), Both(Transfers::kSeparate)).value();
  const CollectiveMemory collectives = {.norm_bytes = 200, .result_bytes = 100};
  // Own squares, those of two ranks, and two numbers; results of three micro-batches.
  EXPECT_EQ(NormTableBytes(collectives, training), AlignBlock(3 * 200 + kNormResultBytes));
  EXPECT_EQ(ResultTableBytes(collectives, training, Rank(0)), AlignBlock(300));
  EXPECT_EQ(ResultTableBytes(collectives, training, Rank(1)), 0) << "the loss is there";
  for (const Schedule& schedule : {training, evaluation}) {
    const std::vector<StageMemory> stages = TypicalStages(schedule);
    for (const Rank rank : {Rank(0), Rank(1)}) {
      EXPECT_EQ(PlanMemory(schedule, rank, stages, collectives)->resident_bytes,
                PlanMemory(schedule, rank, stages)->resident_bytes +
                    NormTableBytes(collectives, schedule) +
                    ResultTableBytes(collectives, schedule, rank));
    }
  }
  EXPECT_EQ(
      PlanMemory(training, Rank(0), TypicalStages(training), {.norm_bytes = -1}).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(CollectivesInFiles, AreReadBackFromJson) {
  const Schedule lowered = Lower(OneFOneB({2, 2}).value(), Both(Transfers::kSeparate)).value();
  const std::string text = ToScheduleJson(lowered);
  EXPECT_THAT(text, HasSubstr("\"groups\": [\n    {\"name\": \"all\", \"ranks\": [0, 1]}\n  ]"));
  ASSERT_TRUE(ParseScheduleJson(text).ok()) << ParseScheduleJson(text).status();
  EXPECT_EQ(*ParseScheduleJson(text), lowered);
}

TEST(CollectivesInFiles, HaveNoPlaceInCsv) {
  Schedule lowered = Lower(OneFOneB({2, 2}).value()).value();
  const std::string csv = ToScheduleCsv(lowered);
  AddCollectives(Both(Transfers::kSeparate), lowered);
  EXPECT_EQ(ToScheduleCsv(lowered), csv);
  EXPECT_EQ(WriteScheduleFile(::testing::TempDir() + "/collectives.csv", lowered).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CollectivesInFiles, AreReadBackFromTraces) {
  const Schedule lowered = Lower(HandwrittenV(), Both(Transfers::kSeparate)).value();
  std::mt19937 random(5);
  Costs costs = RandomCosts(lowered, 100, random);
  costs.collectives.norms_ns = 40;
  const Trace trace = Simulate(lowered, costs, {.keep_trace = true}).value().trace;
  ASSERT_TRUE(ParseChromeTrace(ToChromeTrace(trace)).ok());
  EXPECT_EQ(*ParseChromeTrace(ToChromeTrace(trace)), trace);
}

TEST(CollectivesInPictures, AreDrawn) {
  const Schedule lowered = Lower(HandwrittenV(), Both(Transfers::kSeparate)).value();
  Costs costs;
  costs.stages.assign(
      4, {.forward_ns = 10, .backward_input_ns = 10, .backward_weight_ns = 10, .backward_ns = 20});
  costs.collectives.norms_ns = 40;
  const Trace trace = Simulate(lowered, costs, {.keep_trace = true}).value().trace;
  EXPECT_THAT(ToTimeline(trace, {}), HasSubstr("X exchange among all ranks"));
  EXPECT_THAT(ToSvg(trace, {}), HasSubstr("NORM of group 0"));
}

}  // namespace
}  // namespace stagecoach::schedule
