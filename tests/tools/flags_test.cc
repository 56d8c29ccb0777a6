#include "tools/cli/flags.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::tools {
namespace {

using stagecoach::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ParseCount, ReadsDecimalNumbersOnly) {
  EXPECT_THAT(*ParseCount("010", 1, 100), 10);
  for (const char* text : {"", "x", "4x", "0x10", " 4", "4 ", "1.5", "1e3", "--4"}) {
    EXPECT_THAT(ParseCount(text, 1, 100), Not(stagecoach::testing::IsOk())) << text;
  }
}

TEST(ParseCount, HoldsTheRange) {
  EXPECT_OK(ParseCount("1", 1, 100));
  EXPECT_OK(ParseCount("100", 1, 100));
  for (const char* text : {"0", "101", "-1", "99999999999999999999"}) {
    EXPECT_THAT(ParseCount(text, 1, 100), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   HasSubstr("a whole number from 1 to 100")))
        << text;
  }
}

TEST(ParseNumber, HoldsTheRange) {
  const NumberRange range = {.min = 0.0, .max = 1.0, .above_min = true};
  EXPECT_OK(ParseNumber("1", range));
  EXPECT_OK(ParseNumber("1e-30", range));
  for (const char* text : {"0", "1.01", "-1", "nan", "inf", "", "0.5x", " 0.5"}) {
    EXPECT_THAT(ParseNumber(text, range),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("above 0 and at most 1")))
        << text;
  }
}

TEST(ParseNumber, MayIncludeTheLowerEnd) {
  EXPECT_OK(ParseNumber("0", {.min = 0.0, .max = 1.0}));
  EXPECT_THAT(ParseNumber("-0.1", {.min = 0.0, .max = 1.0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of at least 0")));
}

TEST(ParseChoice, ListsTheKnownNamesAndTheNearest) {
  EXPECT_THAT(ParseChoice("1f1v", {"gpipe", "1f1b"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "\"1f1v\" is not one of gpipe, 1f1b; did you mean 1f1b?"));
}

}  // namespace
}  // namespace stagecoach::tools
