#include "base/check.h"

#include <gtest/gtest.h>

namespace stagecoach::base {
namespace {

TEST(CheckDeathTest, FailureNamesFileConditionAndMessage) {
  EXPECT_DEATH(STAGECOACH_CHECK(1 + 1 == 3, absl::StrCat("stage ", 7)),
               "check_test.cc:[0-9]+: check failed: 1 \\+ 1 == 3: stage 7");
}

TEST(CheckDeathTest, BadStatusIsPrinted) {
  EXPECT_DEATH(STAGECOACH_CHECK_OK(absl::NotFoundError("no plan")), "is OK: NOT_FOUND: no plan");
}

TEST(CheckDeathTest, BadStatusOrIsPrinted) {
  const absl::StatusOr<int> result = absl::InternalError("lost");
  EXPECT_DEATH(STAGECOACH_CHECK_OK(result), "INTERNAL: lost");
}

TEST(Check, MessageIsEvaluatedOnlyOnFailure) {
  int evaluations = 0;
  const auto message = [&evaluations] {
    ++evaluations;
    return "message";
  };
  STAGECOACH_CHECK(true, message());
  EXPECT_EQ(evaluations, 0);
}

TEST(Check, ConditionIsEvaluatedOnce) {
  int evaluations = 0;
  STAGECOACH_CHECK(++evaluations > 0, "");
  EXPECT_EQ(evaluations, 1);
}

}  // namespace
}  // namespace stagecoach::base
