#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Finished RunPlan(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "plan", "--data", "synthetic:100x16x4", "--batch", "32", "--microbatches", "4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunStagecoach(arguments);
}

nlohmann::json PlanOf(std::vector<std::string> more) {
  more.push_back("--json");
  const Finished run = RunPlan(more);
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.Events(), SizeIs(1));
  return run.Events().at(0);
}

const std::vector<std::string> kSmall = {"--layers", "8", "--width", "16"};

TEST(Plan, CoversTheLayersInOrder) {
  const nlohmann::json plan = PlanOf(kSmall);
  EXPECT_EQ(plan["schedule"], "1f1b");
  EXPECT_EQ(plan["micro_batches"], 4);
  EXPECT_EQ(plan["micro_batch_rows"], 8);
  ASSERT_THAT(plan["stages"], SizeIs(4));
  int next_layer = 0;
  double time = 0;
  for (const nlohmann::json& stage : plan["stages"]) {
    EXPECT_EQ(stage["first_layer"], next_layer);
    next_layer = stage["last_layer"].get<int>() + 1;
    time += stage["time_share"].get<double>();
  }
  EXPECT_EQ(next_layer, 8);
  EXPECT_NEAR(time, 1.0, 1e-9);
}

TEST(Plan, StagesTellTheMemoryOfTheirDevice) {
  const nlohmann::json plan = PlanOf(kSmall);
  for (const nlohmann::json& stage : plan["stages"]) {
    const nlohmann::json& device = plan["devices"][stage["device"].get<size_t>()];
    EXPECT_EQ(stage["predicted_peak_bytes"], device["predicted_peak_bytes"]);
    EXPECT_EQ(stage["memory"], device["memory"]);  // there is one stage on each
  }
}

TEST(Plan, PartsOfMemoryAddUpToThePeak) {
  const nlohmann::json plan = PlanOf(kSmall);
  ASSERT_THAT(plan["devices"], SizeIs(4));
  for (const nlohmann::json& device : plan["devices"]) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : device["memory"].items()) sum += bytes.get<int64_t>();
    EXPECT_EQ(sum, device["predicted_peak_bytes"]);
  }
}

int64_t LargestPeak(const nlohmann::json& plan) {
  int64_t largest = 0;
  for (const nlohmann::json& device : plan["devices"]) {
    largest = std::max(largest, device["predicted_peak_bytes"].get<int64_t>());
  }
  return largest;
}

TEST(Plan, HoldsTheMemoryBudget) {
  std::vector<std::string> arguments = {"--layers", "9", "--width", "64", "--stages", "3"};
  EXPECT_GT(LargestPeak(PlanOf(arguments)), 270'000);
  arguments.insert(arguments.end(), {"--device-memory", "270kB"});
  EXPECT_LE(LargestPeak(PlanOf(arguments)), 270'000);
}

TEST(Plan, MeasuresLayersOnRequest) {
  EXPECT_THAT(PlanOf({"--layers", "8", "--width", "16", "--profile", "measured"})["stages"],
              SizeIs(4));
}

TEST(Plan, ReadsTheModelFromAFile) {
  const std::string path = engine::WriteTestFile(engine::TestDirectory(), "m.toml",
                                                 "[[layer]]\ntype = \"layer_norm\"\nrepeat = 3\n"
                                                 "[[layer]]\ntype = \"linear\"\n"
                                                 "outputs = \"classes\"\n");
  EXPECT_EQ(PlanOf({"--model", path})["stages"].back()["last_layer"], 3);
}

TEST(Plan, DrawsTheStepAsItIsSimulated) {
  const Finished run = RunPlan(kSmall);
  EXPECT_THAT(run.out, AllOf(HasSubstr("\nrank 0 |F0"), HasSubstr("\nrank 3 |..")));
  EXPECT_THAT(run.err, IsEmpty());
}

TEST(Plan, TakesEverySchedule) {
  for (const char* schedule : {"gpipe", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v",
                               "v-half", "v-min", "dualpipe-v", "auto"}) {
    std::vector<std::string> arguments = kSmall;
    arguments.insert(arguments.end(), {"--stages", "2", "--schedule", schedule});
    const nlohmann::json plan = PlanOf(arguments);
    EXPECT_EQ(plan["schedule"], schedule);
    EXPECT_THAT(plan["devices"], SizeIs(2));
  }
}

TEST(Plan, ChunksAreStagesOfEachDevice) {
  std::vector<std::string> arguments = kSmall;
  arguments.insert(arguments.end(),
                   {"--stages", "2", "--schedule", "interleaved", "--chunks", "4"});
  EXPECT_THAT(PlanOf(arguments)["stages"], SizeIs(8));
}

}  // namespace
}  // namespace stagecoach::tools
