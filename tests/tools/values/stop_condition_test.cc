#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tools/stagecoach/values/stop_condition_option.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace stagecoach::tools
