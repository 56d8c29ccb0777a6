// `train --stop-when`.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tools/stagecoach/values/stop_condition_option.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(StopConditionOf, EachMetricAndComparison) {
  const engine::Metrics metrics = {
      .train_loss = 4, .train_accuracy = 0.3, .test_loss = 2, .test_accuracy = 0.1};
  const auto is_met = [&](const std::string& text) {
    return ParseStopCondition(text).value().IsMet(metrics);
  };
  for (const char* met : {"train_loss<=4", "train_loss>3.9", "train_accuracy>=0.3",
                          "train_accuracy<0.31", "test_loss>=2", "test_loss<2.1",
                          "test_accuracy<=0.1", "test_accuracy>0.09", "test_loss>-1e3"}) {
    EXPECT_TRUE(is_met(met)) << met;
  }
  for (const char* unmet : {"train_loss<4", "train_loss>4", "train_accuracy>0.3",
                            "train_accuracy>=0.4", "test_loss<=1", "test_accuracy<0.1"}) {
    EXPECT_FALSE(is_met(unmet)) << unmet;
  }
}

TEST(StopConditionOf, WhatIsNoNumberIsNotMet) {
  const engine::Metrics metrics = {.test_loss = std::nan("")};
  for (const char* text : {"test_loss<1", "test_loss>=1", "train_accuracy>0"}) {
    EXPECT_FALSE(ParseStopCondition(text).value().IsMet(metrics)) << text;
  }
}

TEST(StopConditionOf, OtherTextIsRefused) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"", "one of > >= < <="},
      {"test_accuracy", "one of > >= < <="},
      {"test_accuracy=0.9", "one of > >= < <="},
      {"test_accurracy>0.9", "did you mean test_accuracy?"},
      {" test_accuracy>0.9", "test_loss, train_accuracy"},
      {">0.9", "test_loss, train_accuracy"},
      {"test_accuracy>", "a number of at least 0"},
      {"test_accuracy> 0.9", "a number of at least 0"},
      {"test_accuracy=>0.9", "test_loss, train_accuracy"},
      {"test_accuracy>>0.9", "a number of at least 0"},
      {"test_accuracy>90", "at most 1"},
      {"test_accuracy>-0.1", "at least 0"},
      {"test_loss<nan", "a number"},
      {"test_loss<inf", "a number"},
      {"test_loss<0.5x", "a number"},
  };
  for (const auto& [text, line] : refused) {
    EXPECT_THAT(ParseStopCondition(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(line)))
        << text;
  }
}

// Returns the arguments of a run with epochs of five steps, at a learning rate at which the test
// loss falls in each of the first epochs.
Arguments Stopping(const Arguments& more) {
  return Joined({"train", "--json", "--data", "synthetic:200x16x4", "--layers", "5", "--width",
                 "16", "--global-batch-size", "40", "--gradient-blocks", "2", "--lr-schedule",
                 "constant", "--epochs", "6"},
                more);
}

// A run of 6 epochs whose loss falls below that of epoch 2 in epoch 3.
class StoppedRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Finished whole = RunStagecoach(Stopping({}));
    std::vector<double> losses;
    for (const nlohmann::json& event : whole.Events()) {
      if (event["event"] == "epoch") losses.push_back(event["test_loss"]);
    }
    ASSERT_THAT(losses, SizeIs(6));
    ASSERT_LT(losses[1], losses[0]);
    ASSERT_LT(losses[2], losses[1]);
    condition_ = absl::StrCat("test_loss<", nlohmann::json(losses[1]).dump());
  }
  static nlohmann::json EndOf(const Finished& run) {
    EXPECT_EQ(run.exit_status, 0) << run.err;
    EXPECT_EQ(run.err, "");
    return run.Events().back();
  }

  static inline std::string condition_;
};

TEST_F(StoppedRun, EndsAtTheSameStepInOneProcessAndInSeveral) {
  const Arguments stopping = Stopping({"--stop-when", condition_});
  const nlohmann::json one = EndOf(RunStagecoach(stopping));
  EXPECT_EQ(one["steps"], 15);
  EXPECT_EQ(one["stopped"], false);
  EXPECT_EQ(one["stop_when"]["condition"], condition_);
  EXPECT_EQ(one["stop_when"]["met"], true);
  EXPECT_LT(one["stop_when"]["value"], 10.0);
  const nlohmann::json several =
      EndOf(RunStagecoach(Joined(Joined({"launch", "--processes", "4", "--"}, stopping),
                                 {"--stages", "2", "--replicas", "2"})));
  for (const char* key : {"steps", "parameters_hash", "stop_when"}) {
    EXPECT_EQ(several[key], one[key]) << key;
  }
}

TEST_F(StoppedRun, IsSavedAndGoesOnOnlyWithAnotherCondition) {
  const TestFolder folder;
  const std::string saved = (folder.path() / "run").string();
  EndOf(RunStagecoach(Stopping({"--stop-when", condition_, "--checkpoint", saved})));
  EXPECT_TRUE(std::filesystem::exists(saved + "/step-00000015"));
  const Arguments resume = {"train", "--json", "--checkpoint", saved, "--resume"};
  const nlohmann::json same = EndOf(RunStagecoach(resume));
  EXPECT_EQ(same["steps"], 15);
  EXPECT_EQ(same["stop_when"]["met"], true);
  const nlohmann::json other = EndOf(RunStagecoach(Joined(resume, {"--stop-when", "never"})));
  EXPECT_EQ(other["steps"], 30);
  EXPECT_FALSE(other.contains("stop_when"));
}

TEST_F(StoppedRun, SaysWhetherItHasMetItsCondition) {
  Arguments text = Stopping({"--stop-when", condition_});
  text.erase(text.begin() + 1);
  EXPECT_THAT(RunStagecoach(text).out,
              AllOf(HasSubstr("trained 3 epochs (15 steps)"),
                    HasSubstr(absl::StrCat("--stop-when ", condition_, " is met: it is "))));
  text.insert(text.end(), {"--epochs", "1"});
  EXPECT_THAT(RunStagecoach(text).out,
              HasSubstr(absl::StrCat("--stop-when ", condition_, " is not met: it is ")));
}

}  // namespace
}  // namespace stagecoach::tools
