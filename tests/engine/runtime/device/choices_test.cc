#include "engine/runtime/device/choices.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Texts = std::vector<std::vector<std::string>>;

TEST(Choices, AreTheSameWhereNothingIsChosen) {
  EXPECT_OK(CheckSameChoices({}));
  EXPECT_OK(CheckSameChoices(Texts{{}, {}}));
}

TEST(Choices, MayDifferInWhatIsComputed) {
  EXPECT_OK(CheckSameChoices(Texts{{"a: 1", "b: 2"}, {"c: 3"}, {"b: 2", "d: 1"}}));
}

TEST(Choices, OfTwoRanksForTheSameProductMustAgree) {
  EXPECT_THAT(CheckSameChoices(Texts{{"a: 1"}, {"a: 1", "b x c: 2"}, {"d: 1"}, {"b x c: 3"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("ranks 1 and 3 "),
                             HasSubstr("b x c is 2 on the one and 3 on the other"),
                             HasSubstr("--tuning none"))));
}

TEST(Choices, AreOfAllBeforeTheLastColon) {
  EXPECT_OK(CheckSameChoices(Texts{{"gpu: a: 1"}, {"gpu: b: 2"}}));
  EXPECT_THAT(CheckSameChoices(Texts{{"gpu: a: 1"}, {"gpu: a: 2"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "gpu: a"));
}

}  // namespace
}  // namespace stagecoach::engine
