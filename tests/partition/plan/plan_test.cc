#include "partition/plan/plan.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/text/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/plan/compiled_plan.h"
#include "partition/search/balance_stages.h"
#include "schedule/generators/generators.h"
#include "schedule/verify/validator.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

auto IsReduction() {
  return ::testing::Field(&schedule::Action::op, schedule::Op::kReduceGradients);
}

Plan SmallPlan() {
  return {.first_layer = {0, 2, 3},
          .num_layers = 6,
          .schedule = GeneratedSchedule("1f1b", 4)(3).value()};
}

TEST(Plan, KnowsTheLayersOfItsStages) {
  const Plan plan = SmallPlan();
  EXPECT_EQ(plan.num_stages(), 3);
  EXPECT_EQ(plan.first(1), 2);
  EXPECT_EQ(plan.last(1), 2);
  EXPECT_EQ(plan.last(2), 5);
  EXPECT_THAT((std::vector{plan.stage_of(0), plan.stage_of(1), plan.stage_of(2), plan.stage_of(5)}),
              ElementsAre(0, 0, 1, 2));
  EXPECT_EQ(plan.num_devices(), 3);
  EXPECT_EQ(plan.micro_batches(), 4);
}

TEST(Plan, BatchRowsAreCountedInSixtyFourBits) {
  Plan plan = SmallPlan();
  plan.schedule.num_micro_batches = 1 << 20;
  plan.micro_batch_rows = 1 << 20;
  EXPECT_EQ(plan.batch_rows(), int64_t{1} << 40);
}

TEST(Plan, ReplicasOfARankAreConsecutiveDevices) {
  Plan plan = SmallPlan();
  plan.replication = {2, 4};
  EXPECT_EQ(plan.num_ranks(), 3);
  EXPECT_EQ(plan.num_devices(), 6);
  EXPECT_EQ(plan.first_device_of(schedule::Rank(2)), 4);
  EXPECT_EQ(plan.micro_batches(), 8);
  EXPECT_EQ(plan.batch_rows(), 8);
  EXPECT_OK(CheckPlan(plan));
  plan.replication = {2, 16};
  EXPECT_THAT(CheckPlan(plan), IsRefused("8 micro-batches cannot be divided evenly into 16"));
}

TEST(CheckPlan, AcceptsStagesThatCoverTheLayers) { EXPECT_OK(CheckPlan(SmallPlan())); }

TEST(CheckPlan, RefusesStagesThatDoNotCoverTheLayers) {
  const std::vector<std::vector<int>> bad = {{},        {1, 2},       {-1, 2}, {0, 2, 2},
                                             {0, 3, 2}, {0, 2, 3, 6}, {0, 9}};
  for (const std::vector<int>& first_layer : bad) {
    Plan plan = SmallPlan();
    plan.first_layer = first_layer;
    EXPECT_THAT(CheckPlan(plan), StatusIs(absl::StatusCode::kInvalidArgument))
        << ::testing::PrintToString(first_layer);
  }
}

TEST(CheckPlan, RefusesWhatIsNoPlan) {
  const Refusal<Change<Plan>> refusals[] = {
      {[](Plan& plan) { plan.first_layer = {0}, plan.num_layers = 0; }, ""},
      {[](Plan& plan) { plan.first_layer[2] = 2; }, "stage 1"},
      {[](Plan& plan) { plan.schedule.num_micro_batches = 0; }, "0 micro-batches"},
      {[](Plan& plan) { plan.schedule = GeneratedSchedule("gpipe", 4)(2).value(); },
       AllOf(HasSubstr("3 stages"), HasSubstr("schedule gpipe has 2"))},
      {[](Plan& plan) { plan.schedule.rank_of_stage[1] = schedule::Rank(-1); }, "stage 1"},
      {[](Plan& plan) { plan.schedule.rank_of_stage[1] = schedule::Rank(3); }, "stage 1"},
      {[](Plan& plan) { plan.schedule.actions.emplace_back(); }, "rank 3"},
      {[](Plan& plan) { plan.micro_batch_rows = 0; }, "0 rows"},
  };
  ExpectRefusedChanges(SmallPlan(), CheckPlan, refusals);
}

TEST(CheckPlan, TakesAScheduleThatOnlyPredicts) {
  Plan plan = SmallPlan();
  EXPECT_TRUE(plan.trains());
  EXPECT_OK(CheckTrains(plan.schedule));
  plan.schedule =
      schedule::ForwardOnly({schedule::Rank(0), schedule::Rank(1), schedule::Rank(2)}, 3, 4)
          .value();
  EXPECT_OK(CheckPlan(plan));
  EXPECT_FALSE(plan.trains());
  EXPECT_THAT(CheckTrains(plan.schedule), IsRefused("forward has no backward"));
  const LoweredSchedules lowered = LowerPlan(plan).value();
  EXPECT_EQ(lowered.training, lowered.evaluation);
}

TEST(LowerPlan, IsValidAndOfThePlansShape) {
  const schedule::Schedule lowered = LowerPlan(SmallPlan())->training;
  EXPECT_OK(schedule::Validate(lowered));
  EXPECT_EQ(lowered.name, "1f1b");
  EXPECT_EQ(lowered.num_stages(), 3);
  EXPECT_EQ(lowered.num_micro_batches, 4);
}

TEST(LowerPlan, TakesOneThatIsLoweredAsItIs) {
  Plan plan = SmallPlan();
  plan.schedule = LowerPlan(plan)->training;
  EXPECT_EQ(LowerPlan(plan)->training, plan.schedule);
}

TEST(LowerPlan, IsForTheTransfersAskedFor) {
  ASSERT_OK_AND_ASSIGN(const LoweredSchedules lowered,
                       LowerPlan(SmallPlan(), schedule::Transfers::kGrouped));
  EXPECT_EQ(lowered.transfers, schedule::Transfers::kGrouped);
  EXPECT_OK(schedule::Validate(lowered.training, schedule::Transfers::kGrouped));
  EXPECT_NE(lowered.training, LowerPlan(SmallPlan())->training);
}

TEST(LowerPlan, RefusesOneThatIsLoweredForOtherTransfers) {
  Plan plan = SmallPlan();
  plan.schedule = LowerPlan(plan)->training;
  EXPECT_THAT(LowerPlan(plan, schedule::Transfers::kGrouped),
              StatusIs(absl::StatusCode::kFailedPrecondition, "deadlock"));
}

TEST(LowerPlan, RefusesOneThatCannotBePerformed) {
  Plan plan = SmallPlan();
  plan.schedule.actions[1].pop_back();
  EXPECT_THAT(LowerPlan(plan), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(CheckPerformable(plan), StatusIs(absl::StatusCode::kFailedPrecondition));
  plan.first_layer = {0, 0};
  EXPECT_THAT(LowerPlan(plan), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(LowerPlan, SumsGradientsOverReplicas) {
  Plan plan = SmallPlan();
  EXPECT_THAT(plan.schedule.actions, Each(Not(Contains(IsReduction()))));
  plan.replication = {2, 2};
  ASSERT_OK_AND_ASSIGN(const LoweredSchedules lowered, LowerPlan(plan));
  EXPECT_EQ(lowered.replication, plan.replication);
  EXPECT_THAT(lowered.training.actions, Each(Contains(IsReduction()).Times(1)));
  EXPECT_THAT(lowered.evaluation.actions, Each(Not(Contains(IsReduction()))));
  plan.schedule = lowered.training;
  EXPECT_EQ(LowerPlan(plan)->training, plan.schedule);
}

// A file, for example, may have been written for another number of replicas.
TEST(LowerPlan, FitsALoweredScheduleToTheReplicas) {
  for (const Replication& given : {Replication{1, 2}, Replication{2, 2}}) {
    for (const Replication& wanted : {Replication{1, 2}, Replication{2, 2}}) {
      Plan plan = SmallPlan();
      plan.replication = given;
      const schedule::Schedule lowered = LowerPlan(plan)->training;
      plan = SmallPlan();
      plan.replication = wanted;
      const schedule::Schedule expected = LowerPlan(plan)->training;
      plan.schedule = lowered;
      EXPECT_EQ(LowerPlan(plan)->training, expected);
    }
  }
}

TEST(LowerPlan, RefusesReductionsOfSomeStagesAlone) {
  Plan plan = SmallPlan();
  plan.replication = {2, 2};
  plan.schedule = LowerPlan(plan)->training;
  std::erase_if(plan.schedule.actions[0], [](const schedule::Action& action) {
    return action.op == schedule::Op::kReduceGradients;
  });
  EXPECT_THAT(LowerPlan(plan),
              StatusIs(absl::StatusCode::kFailedPrecondition, "but none of stage 0"));
}

TEST(LowerPlan, EvaluatesByForwardAloneUnderThePlacementOfTheTraining) {
  for (const char* name : {"gpipe", "interleaved", "zb-v"}) {
    Plan plan = {.schedule = GeneratedSchedule(name, 4)(2).value()};
    plan.num_layers = plan.schedule.num_stages();
    for (int stage = 0; stage < plan.num_layers; ++stage) plan.first_layer.push_back(stage);
    ASSERT_OK_AND_ASSIGN(const LoweredSchedules lowered, LowerPlan(plan));
    const schedule::Schedule& evaluation = lowered.evaluation;
    EXPECT_OK(schedule::Validate(evaluation));
    EXPECT_FALSE(evaluation.HasBackward());
    EXPECT_EQ(evaluation.rank_of_stage, plan.schedule.rank_of_stage);
    EXPECT_EQ(evaluation.num_micro_batches, 4);
  }
}

TEST(LowerPlan, LowersTheEvaluationForTheTransfersAskedFor) {
  ASSERT_OK_AND_ASSIGN(const LoweredSchedules lowered,
                       LowerPlan(SmallPlan(), schedule::Transfers::kGrouped));
  EXPECT_OK(schedule::Validate(lowered.evaluation, schedule::Transfers::kGrouped));
  EXPECT_NE(lowered.evaluation, LowerPlan(SmallPlan())->evaluation);
}

TEST(GeneratedSchedule, HasTheDevicesChunksAndMicroBatchesAskedFor) {
  ASSERT_OK_AND_ASSIGN(const schedule::Schedule made, GeneratedSchedule("interleaved", 6, 3)(2));
  EXPECT_EQ(made.num_ranks(), 2);
  EXPECT_EQ(made.num_stages(), 6);
  EXPECT_EQ(made.num_micro_batches, 6);
}

TEST(GeneratedSchedule, RefusesAnUnknownName) {
  EXPECT_THAT(GeneratedSchedule("1f1c", 4)(2),
              IsRefused(AllOf(HasSubstr("1f1c"), HasSubstr("1f1b"))));
}

TEST(CompilePlan, AddsParametersAndSharesTimeByStage) {
  std::vector<LayerCost> layers(6);
  for (int i = 0; i < 6; ++i) {
    layers[i].parameters = 1 << i;
    layers[i].forward_ns = 1;
  }
  ASSERT_OK_AND_ASSIGN(const CompiledPlan prepared, CompilePlan(SmallPlan(), layers, {}));
  const std::vector<StageReport>& reports = prepared.stages;
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports[0].parameters, 1 + 2);
  EXPECT_EQ(reports[1].parameters, 4);
  EXPECT_EQ(reports[2].parameters, 8 + 16 + 32);
  EXPECT_DOUBLE_EQ(reports[0].time_share, 2.0 / 6);
  EXPECT_DOUBLE_EQ(reports[1].time_share, 1.0 / 6);
  EXPECT_DOUBLE_EQ(reports[2].time_share, 3.0 / 6);
  EXPECT_EQ(reports[2].first_layer, 3);
  EXPECT_EQ(reports[2].last_layer, 5);
}

TEST(CompilePlan, SharesSumToOneWhereNothingTakesTime) {
  ASSERT_OK_AND_ASSIGN(const CompiledPlan prepared,
                       CompilePlan(SmallPlan(), std::vector<LayerCost>(6), {}));
  double sum = 0;
  for (const StageReport& stage : prepared.stages) sum += stage.time_share;
  EXPECT_DOUBLE_EQ(sum, 1);
}

// One stage, one micro-batch, GPipe: F, BW, STEP. All sizes are multiples of a block, so that the
// peak can be added up by hand.
TEST(CompilePlan, PredictsThePeakOfOneStage) {
  std::vector<LayerCost> layers(1);
  LayerMemory& memory = layers[0].memory;
  memory.parameter_bytes = 1024;
  memory.optimizer_bytes = 2048;
  memory.input_bytes = 256;
  memory.output_bytes = 512;
  memory.stash_bytes = 768;
  memory.workspace_bytes = 1280;
  const Plan plan = {
      .first_layer = {0}, .num_layers = 1, .schedule = GeneratedSchedule("gpipe", 1)(1).value()};
  ASSERT_OK_AND_ASSIGN(
      const CompiledPlan prepared,
      CompilePlan(plan, layers, {.loss_workspace_bytes = 256, .loss_resident_bytes = 256}));
  const int64_t resident_bytes = 1024 + 1024 + 2048 + 256;
  const int64_t during_forward_bytes = 256 + 512 + 768 + 512;  // input, output, stash, gradient
  EXPECT_EQ(prepared.ranks[0].peak_bytes(), resident_bytes + 1280 + during_forward_bytes);
}

TEST(CompilePlan, HasTheStagesOfEachDevice) {
  const Plan plan = {.first_layer = {0, 1, 3, 4},
                     .num_layers = 6,
                     .schedule = GeneratedSchedule("zb-v", 4)(2).value()};
  ASSERT_OK_AND_ASSIGN(const CompiledPlan prepared,
                       CompilePlan(plan, std::vector<LayerCost>(6), {}));
  using schedule::Rank;
  using schedule::StageId;
  ASSERT_EQ(prepared.ranks.size(), 2u);
  EXPECT_THAT(prepared.of(Rank(0)).stages, ElementsAre(StageId(0), StageId(3)));
  EXPECT_THAT(prepared.of(Rank(1)).stages, ElementsAre(StageId(1), StageId(2)));
  EXPECT_EQ(prepared.of(StageId(2)).rank, Rank(1));
}

// The resident memory of a device is that of all its stages.
TEST(CompilePlan, PeakOfADeviceCountsAllItsStages) {
  std::vector<LayerCost> layers(4);
  for (int i = 0; i < 4; ++i) layers[i].memory.parameter_bytes = 1024 << i;
  const Plan plan = {.first_layer = {0, 1, 2, 3},
                     .num_layers = 4,
                     .schedule = GeneratedSchedule("interleaved", 2)(2).value()};
  ASSERT_OK_AND_ASSIGN(const CompiledPlan prepared, CompilePlan(plan, layers, {}));
  EXPECT_EQ(prepared.ranks[0].peak_bytes(), 2 * (1024 + 4096));
  EXPECT_EQ(prepared.ranks[1].peak_bytes(), 2 * (2048 + 8192));
}

TEST(CompilePlan, PlansMemoryForTheTransfersAskedFor) {
  std::mt19937 random(7);
  const std::vector<LayerCost> layers = RandomLayers(random, 6);
  const EndMemory ends = RandomEnds(random);
  for (const auto transfers : {schedule::Transfers::kSeparate, schedule::Transfers::kGrouped}) {
    ASSERT_OK_AND_ASSIGN(const CompiledPlan prepared,
                         CompilePlan(SmallPlan(), layers, ends, transfers));
    const std::vector<schedule::StageMemory> memory = prepared.memory_of_stages();
    const schedule::Schedule training = prepared.lowered->training;
    for (schedule::Rank rank(0); rank.value() < 3; ++rank) {
      ASSERT_OK_AND_ASSIGN(const schedule::MemoryPlan expected,
                           schedule::PlanMemory(training, rank, memory));
      EXPECT_EQ(prepared.of(rank).training, expected);
      EXPECT_EQ(prepared.of(rank).training.blocks, expected.blocks);
    }
  }
}

TEST(RankReport, PeakIsTheLargerOneOfTrainingAndEvaluation) {
  RankReport report;
  report.training.resident_bytes = report.evaluation.resident_bytes = 10;
  report.training.workspace_bytes = report.evaluation.workspace_bytes = 20;
  report.training.dynamic_bytes = 30;
  report.evaluation.dynamic_bytes = 40;
  EXPECT_EQ(report.peak_bytes(), 70);
  report.evaluation.dynamic_bytes = 5;
  EXPECT_EQ(report.peak_bytes(), 60);
}

std::vector<std::string> TableOf(const CompiledPlan& report) {
  return absl::StrSplit(PlanTable(report), '\n', absl::SkipEmpty());
}

TEST(PlanTable, HasARowForEachStageThatEndsWithThePeakOfItsDevice) {
  std::mt19937 random(1);
  ASSERT_OK_AND_ASSIGN(const CompiledPlan prepared,
                       CompilePlan(SmallPlan(), RandomLayers(random, 6), RandomEnds(random)));
  const std::vector<std::string> lines = TableOf(prepared);
  ASSERT_EQ(lines.size(), 2 + prepared.stages.size());  // header and rule
  EXPECT_THAT(lines[2], HasSubstr("0-1"));
  for (size_t rank = 0; rank < prepared.ranks.size(); ++rank) {
    EXPECT_THAT(lines[2 + rank],
                ::testing::EndsWith(base::FormatBytes(prepared.ranks[rank].peak_bytes())));
  }
}

TEST(PlanTable, GroupsStagesByDeviceAndGivesItsPeakOnce) {
  std::mt19937 random(1);
  const Plan plan = {.first_layer = {0, 1, 3, 4},
                     .num_layers = 6,
                     .schedule = GeneratedSchedule("zb-v", 4)(2).value()};
  ASSERT_OK_AND_ASSIGN(const CompiledPlan prepared, CompilePlan(plan, RandomLayers(random, 6), {}));
  const std::vector<std::string> lines = TableOf(prepared);
  ASSERT_EQ(lines.size(), 2u + 4);
  EXPECT_THAT(lines[2], ::testing::ContainsRegex("^     0 +0 +0-0 "));
  EXPECT_THAT(lines[3], ::testing::ContainsRegex("^ +3 +4-5 "));
  EXPECT_THAT(lines[4], ::testing::ContainsRegex("^     1 +1 +1-2 "));
  EXPECT_THAT(lines[5], ::testing::ContainsRegex("^ +2 +3-3 "));
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(lines[2 + 2 * rank],
                ::testing::EndsWith(base::FormatBytes(prepared.ranks[rank].peak_bytes())));
    EXPECT_LT(lines[3 + 2 * rank].size(), lines[2 + 2 * rank].size());
  }
}

TEST(PlanTable, BytesOfADeviceAddUpToItsPeak) {
  CompiledPlan report;
  report.stages.push_back(
      {.memory = {.parameter_bytes = 1, .gradient_bytes = 2, .optimizer_bytes = 4}});
  report.ranks.push_back({.stages = {schedule::StageId(0)}, .training = {}, .evaluation = {}});
  schedule::MemorySizes& plan = report.ranks[0].training;
  plan.resident_bytes = 7;
  plan.workspace_bytes = 100;
  plan.dynamic_bytes = 30;
  plan.peak_stash_bytes = 20;
  EXPECT_EQ(BufferBytes(report, schedule::Rank(0)), 110);
  EXPECT_THAT(TableOf(report)[2], ::testing::ContainsRegex("1 B +2 B +4 B +20 B +110 B +137 B"));
}

TEST(PlanTable, IsAtMostNinetySixColumnsWide) {
  CompiledPlan report;
  const int64_t large_bytes = 999'900'000'000;
  for (int i = 0; i < 100; ++i) {
    report.stages.push_back({.rank = schedule::Rank(i),
                             .first_layer = 9 * i,
                             .last_layer = 9 * i + 8,
                             .time_share = i == 0 ? 1.0 : 0.0,
                             .memory = {.parameter_bytes = large_bytes,
                                        .gradient_bytes = large_bytes,
                                        .optimizer_bytes = large_bytes}});
    report.ranks.push_back({.stages = {schedule::StageId(i)}, .training = {}, .evaluation = {}});
    schedule::MemorySizes& plan = report.ranks.back().training;
    plan.dynamic_bytes = large_bytes;
    plan.peak_stash_bytes = large_bytes;
  }
  for (const std::string& line : TableOf(report)) EXPECT_LE(line.size(), 96u) << line;
}

}  // namespace
}  // namespace stagecoach::partition
