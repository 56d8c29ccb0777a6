#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::SizeIs;

Finished RunPlan(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "plan", "--data", "synthetic:100x16x4", "--global-batch-size", "32", "--micro-batches", "4"};
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
  EXPECT_EQ(plan["micro_batches"], 4);
  EXPECT_EQ(plan["micro_batch_rows"], 8);
  int next_layer = 0;
  for (const nlohmann::json& stage : plan["stages"]) {
    EXPECT_EQ(stage["first_layer"], next_layer);
    next_layer = stage["last_layer"].get<int>() + 1;
  }
  EXPECT_EQ(next_layer, 8);
  EXPECT_GT(plan["objective_ms"], 0.0);
  EXPECT_LE(plan["lower_bound_ms"], plan["objective_ms"]);
  EXPECT_GT(plan["planning_ms"], 0.0);
}

TEST(Plan, PartsOfMemoryAddUpToThePeak) {
  const nlohmann::json plan = PlanOf(kSmall);
  for (const nlohmann::json& stage : plan["stages"]) {
    nlohmann::json memory = stage["memory_bytes"];
    const int64_t peak_bytes = memory["peak"];
    int64_t sum = 0;
    for (const char* part : {"parameters", "gradients", "optimizer", "stash", "buffers"}) {
      sum += memory[part].get<int64_t>();
    }
    EXPECT_EQ(sum, peak_bytes);
  }
}

int64_t LargestPeak(const nlohmann::json& plan) {
  int64_t largest = 0;
  for (const nlohmann::json& stage : plan["stages"]) {
    largest = std::max(largest, stage["memory_bytes"]["peak"].get<int64_t>());
  }
  return largest;
}

TEST(Plan, HoldsTheMemoryBudget) {
  std::vector<std::string> arguments = {"--layers", "9", "--width", "64", "--devices", "3"};
  const int64_t free_bytes = LargestPeak(PlanOf(arguments));
  arguments.insert(arguments.end(), {"--device-memory", std::to_string(free_bytes - 1)});
  EXPECT_LT(LargestPeak(PlanOf(arguments)), free_bytes);
}

// The process is stopped meanwhile, so that it takes long enough on any machine.
TEST(Plan, SaysThatItMeasures) {
  Child child({"plan", "--data", "synthetic:256x32x4", "--layers", "4", "--width", "2048",
               "--stages", "2", "--micro-batches", "4", "--profile", "measured"});
  absl::SleepFor(absl::Milliseconds(200));
  child.Signal(SIGSTOP);
  ASSERT_TRUE(child.WaitUntilStopped());
  absl::SleepFor(absl::Milliseconds(1500));
  child.Signal(SIGCONT);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_EQ(run.err, "stagecoach: measures the layers, with micro-batches of 32 rows\n");
}

TEST(Plan, ChoosesTheNumberOfMicroBatches) {
  const Finished run = RunStagecoach({"plan", "--data", "synthetic:100x16x4", "--global-batch-size",
                                      "24", "--layers", "8", "--width", "512", "--json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const nlohmann::json plan = run.Events().at(0);
  EXPECT_EQ(plan["micro_batches"].get<int>() * plan["micro_batch_rows"].get<int>(), 24);
  EXPECT_GT(plan["micro_batches"], 1);
  EXPECT_GT(plan["considered"], 5);
}

TEST(Plan, WhatItSavesIsWhatTrainPerforms) {
  const std::string path = engine::TestDirectory() + "/plan.json";
  const std::vector<std::string> model = {
      "--data", "synthetic:200x16x4", "--layers", "8", "--width", "16"};
  std::vector<std::string> plan = {
      "plan", "--global-batch-size", "24", "--devices", "3", "--save", path, "--json"};
  plan.insert(plan.end(), model.begin(), model.end());
  const Finished planned = RunStagecoach(plan);
  ASSERT_EQ(planned.exit_status, 0) << planned.err;
  std::vector<std::string> train = {"train", "--plan", path, "--epochs", "1", "--json"};
  train.insert(train.end(), model.begin(), model.end());
  const Finished trained = RunStagecoach(train);
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  const nlohmann::json evaluation = planned.Events().at(0);
  const nlohmann::json end = trained.Events().back();
  size_t compared = 0;
  for (const nlohmann::json& device : end["devices"]) {
    for (const nlohmann::json& stage : evaluation["stages"]) {
      if (stage["first_layer"] != device["stages"][0]["first_layer"]) continue;
      EXPECT_EQ(device["measured_peak_bytes"], stage["memory_bytes"]["peak"]);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3U);
}

}  // namespace
}  // namespace stagecoach::tools
