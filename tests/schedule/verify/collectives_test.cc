// Collectives: where Lower puts them, how long the simulator takes for them, their memory, and how
// files and pictures show them. collective_rules_test.cc has the validator's verdicts on wrong
// ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedule/generators/generators.h"
#include "schedule/io/csv.h"
#include "schedule/io/schedule_file.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/render/svg.h"
#include "schedule/render/timeline.h"
#include "schedule/simulate/simulate.h"
#include "schedule/traces/chrome_trace.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/collective_schedules.h"
#include "tests/schedule/handwritten.h"
#include "tests/schedule/random_costs.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::schedule {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(LowerCollectives, NormsComeBeforeStepsAndResultsAtTheEnd) {
  const Schedule lowered = Lower(OneFOneB({2, 1}).value(), Both(Transfers::kSeparate)).value();
  EXPECT_THAT(ToText(lowered.actions[0]), EndsWith("BW0.0 NORM0 STEP0 RESULTS0"));
  EXPECT_THAT(ToText(lowered.actions[1]), EndsWith("BW1.0 SEND_B1.0 NORM0 STEP1 RESULTS0"));
  EXPECT_THAT(lowered.groups, ElementsAre(CollectiveGroup{"all", {Rank(0), Rank(1)}}));
}

TEST(LowerCollectives, ResultsMayComeBeforeSteps) {
  const LoweringOptions options = Both(Transfers::kSeparate, ResultsPlace::kBeforeSteps);
  const Schedule lowered = Lower(OneFOneB({2, 1}).value(), options).value();
  EXPECT_THAT(ToText(lowered.actions[0]), EndsWith("BW0.0 NORM0 RESULTS0 STEP0"));
  EXPECT_THAT(ToText(lowered.actions[1]), EndsWith("BW1.0 SEND_B1.0 NORM0 RESULTS0 STEP1"));
  const Schedule compute = ForwardOnly({Rank(0), Rank(1)}, 2, 1).value();
  EXPECT_EQ(ToText(Lower(compute, options).value().actions[0]), "F0.0 SEND_F0.0 RESULTS0");
}

TEST(LowerCollectives, TiesComeBeforeNorms) {
  LoweringOptions options = Both(Transfers::kSeparate, ResultsPlace::kBeforeSteps);
  options.sum_ties = true;
  const Schedule lowered = Lower(OneFOneB({2, 1}).value(), options).value();
  EXPECT_THAT(ToText(lowered.actions[0]), EndsWith("BW0.0 TIES0 NORM0 RESULTS0 STEP0"));
  const Schedule alone = Lower(OneFOneB({2, 1}).value(), {.sum_ties = true}).value();
  EXPECT_THAT(ToText(alone.actions[1]), EndsWith("BW1.0 SEND_B1.0 TIES0 STEP1"));
  const Schedule compute = ForwardOnly({Rank(0), Rank(1)}, 2, 1).value();
  EXPECT_EQ(ToText(Lower(compute, {.sum_ties = true}).value().actions[0]), "F0.0 SEND_F0.0");
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
        for (const ResultsPlace place : {ResultsPlace::kEnd, ResultsPlace::kBeforeSteps}) {
          const Schedule lowered = Lower(schedule, Both(transfers, place)).value();
          EXPECT_TRUE(Validate(lowered, transfers).ok())
              << generator.name << ": " << Validate(lowered, transfers);
        }
      }
    }
  }
}

TEST(FitToRun, LeavesCollectivesWhereTheyAre) {
  const Schedule given = AfterStart("NORM1 STEP0 RESULTS0", "NORM1 STEP1 RESULTS0");
  Schedule lowered = given;
  FitToRun(Both(Transfers::kSeparate), lowered);
  EXPECT_EQ(lowered, given);
}

TEST(FitToRun, ARankWithoutStagesTakesPart) {
  Schedule lowered = FromText({0}, 1, {"F0.0 BW0.0 STEP0", ""});
  FitToRun(Both(Transfers::kSeparate), lowered);
  EXPECT_EQ(ToText(lowered.actions[1]), "NORM0 RESULTS0");
  EXPECT_TRUE(Validate(lowered).ok()) << Validate(lowered);
}

// Passes of 10 ns, steps of 3; rank 0 reaches the norms at 40, rank 1 at 30.
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

// The gradient is under way until 70, and the norms use the stream that carries it.
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
  CollectiveMemory of_four = collectives;
  of_four.replicas = 4;
  EXPECT_EQ(ResultTableBytes(of_four, training, Rank(0)), 5 * AlignBlock(300));
  EXPECT_EQ(ResultTableBytes(of_four, training, Rank(1)), 4 * AlignBlock(300));
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
  FitToRun(Both(Transfers::kSeparate), lowered);
  EXPECT_EQ(ToScheduleCsv(lowered), csv);
  const testing::TestFolder folder;
  EXPECT_EQ(WriteScheduleFile(folder.path() / "collectives.csv", lowered).code(),
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
