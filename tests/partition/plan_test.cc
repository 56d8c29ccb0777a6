#include "partition/plan.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/validator.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

Plan SmallPlan() { return {.first_layer = {0, 2, 3}, .num_layers = 6, .micro_batches = 4}; }

TEST(Plan, KnowsTheLayersOfItsStages) {
  const Plan plan = SmallPlan();
  EXPECT_EQ(plan.num_stages(), 3);
  EXPECT_EQ(plan.first(1), 2);
  EXPECT_EQ(plan.last(1), 2);
  EXPECT_EQ(plan.last(2), 5);
}

TEST(Plan, BatchRowsAreCountedInSixtyFourBits) {
  Plan plan = SmallPlan();
  plan.micro_batches = 1 << 20;
  plan.micro_batch_rows = 1 << 20;
  EXPECT_EQ(plan.batch_rows(), int64_t{1} << 40);
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

TEST(CheckPlan, RefusesAModelWithoutLayers) {
  Plan plan = SmallPlan();
  plan.first_layer = {0};
  plan.num_layers = 0;
  EXPECT_THAT(CheckPlan(plan), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CheckPlan, NamesTheStageWithoutALayer) {
  Plan plan = SmallPlan();
  plan.first_layer = {0, 2, 2};
  EXPECT_THAT(CheckPlan(plan), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stage 1")));
}

TEST(CheckPlan, RefusesNoMicroBatches) {
  Plan plan = SmallPlan();
  plan.micro_batches = 0;
  EXPECT_THAT(CheckPlan(plan),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 micro-batches")));
}

TEST(CheckPlan, RefusesMicroBatchesWithoutRows) {
  Plan plan = SmallPlan();
  plan.micro_batch_rows = 0;
  EXPECT_THAT(CheckPlan(plan), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 rows")));
}

TEST(LoweredSchedule, IsValidAndOfThePlansShape) {
  ASSERT_OK_AND_ASSIGN(const schedule::Schedule lowered, LoweredSchedule(SmallPlan()));
  EXPECT_OK(schedule::Validate(lowered));
  EXPECT_EQ(lowered.name, "1f1b");
  EXPECT_EQ(lowered.num_stages(), 3);
  EXPECT_EQ(lowered.num_micro_batches, 4);
}

TEST(LoweredSchedule, RefusesAnUnknownSchedule) {
  Plan plan = SmallPlan();
  plan.schedule = "1f1c";
  EXPECT_THAT(LoweredSchedule(plan), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr("1f1c"), HasSubstr("1f1b"))));
}

TEST(LoweredSchedule, RefusesABadPlan) {
  Plan plan = SmallPlan();
  plan.first_layer = {0, 0};
  EXPECT_THAT(LoweredSchedule(plan), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ReportPlan, AddsParametersAndSharesTimeByStage) {
  std::vector<LayerCost> layers(6);
  for (int i = 0; i < 6; ++i) {
    layers[i].parameters = 1 << i;
    layers[i].forward_ns = 1;
  }
  ASSERT_OK_AND_ASSIGN(const auto reports, ReportPlan(SmallPlan(), layers, {}));
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

TEST(ReportPlan, SharesSumToOneWhereNothingTakesTime) {
  ASSERT_OK_AND_ASSIGN(const auto reports, ReportPlan(SmallPlan(), std::vector<LayerCost>(6), {}));
  EXPECT_DOUBLE_EQ(reports[0].time_share + reports[1].time_share + reports[2].time_share, 1);
}

// One stage, one micro-batch, GPipe: F, BW, STEP. All sizes are multiples of a block, so that the
// peak can be added up by hand.
TEST(ReportPlan, PredictsThePeakOfOneStage) {
  std::vector<LayerCost> layers(1);
  LayerMemory& memory = layers[0].memory;
  memory.parameter_bytes = 1024;
  memory.optimizer_bytes = 2048;
  memory.input_bytes = 256;
  memory.output_bytes = 512;
  memory.stash_bytes = 768;
  memory.workspace_bytes = 1280;
  const Plan plan = {.first_layer = {0}, .num_layers = 1, .schedule = "gpipe"};
  ASSERT_OK_AND_ASSIGN(const auto reports,
                       ReportPlan(plan, layers, {.workspace_bytes = 256, .resident_bytes = 256}));
  const int64_t resident_bytes = 1024 + 1024 + 2048 + 256;
  const int64_t during_forward_bytes = 256 + 512 + 768 + 512;  // input, output, stash, gradient
  EXPECT_EQ(reports[0].memory_plan.peak_bytes(), resident_bytes + 1280 + during_forward_bytes);
}

TEST(ReportPlan, RefusesAPlanForAnotherModel) {
  EXPECT_THAT(ReportPlan(SmallPlan(), std::vector<LayerCost>(5), {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("6 layers"), HasSubstr("the model has 5"))));
}

TEST(ReportPlan, RefusesNegativeSizes) {
  std::vector<LayerCost> layers(6);
  layers[4].memory.stash_bytes = -64;
  EXPECT_THAT(ReportPlan(SmallPlan(), layers, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer 4")));
}

TEST(PlanTable, HasARowForEachStageThatEndsWithItsPeak) {
  std::mt19937 random(1);
  ASSERT_OK_AND_ASSIGN(const auto reports,
                       ReportPlan(SmallPlan(), RandomLayers(random, 6), RandomLoss(random)));
  const std::vector<std::string> lines =
      absl::StrSplit(PlanTable(reports), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2 + reports.size());  // header and rule
  EXPECT_THAT(lines[2], HasSubstr("0-1"));
  for (size_t stage = 0; stage < reports.size(); ++stage) {
    EXPECT_THAT(lines[2 + stage],
                ::testing::EndsWith(base::FormatBytes(reports[stage].memory_plan.peak_bytes())));
  }
}

TEST(PlanTable, BytesOfARowAddUpToItsPeak) {
  StageReport report;
  report.memory = {.parameter_bytes = 1, .gradient_bytes = 2, .optimizer_bytes = 4};
  report.memory_plan.resident_bytes = 7;
  report.memory_plan.workspace_bytes = 100;
  report.memory_plan.dynamic_bytes = 30;
  report.memory_plan.peak_stash_bytes = 20;
  const std::vector<std::string> lines = absl::StrSplit(PlanTable({report}), '\n');
  EXPECT_THAT(lines[2], ::testing::ContainsRegex("1 B +2 B +4 B +20 B +110 B +137 B"));
}

}  // namespace
}  // namespace stagecoach::partition
