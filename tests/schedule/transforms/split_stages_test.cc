#include "schedule/transforms/split_stages.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::IsRefused;

std::string ListOf(const Schedule& schedule, int rank) {
  return absl::StrJoin(schedule.list_of(Rank(rank)), " ",
                       [](std::string* text, const Action& action) { *text += ToCode(action); });
}

TEST(SplitStages, DividesEveryPass) {
  const Schedule split = SplitStages(OneFOneB({2, 2}).value(), {2, 1}).value();
  EXPECT_EQ(split.name, "1f1b");
  EXPECT_THAT(split.rank_of_stage, ::testing::ElementsAre(Rank(0), Rank(0), Rank(1)));
  EXPECT_EQ(ListOf(split, 0), "F0.0 F1.0 F0.1 F1.1 BW1.0 BW0.0 BW1.1 BW0.1");
  EXPECT_EQ(ListOf(split, 1), "F2.0 BW2.0 F2.1 BW2.1");
}

// The gradients of the last part are on their way while the others are still to come.
TEST(SplitStages, LetsReductionsBegin) {
  const Schedule split = SplitStages(OneFOneB({1, 2}).value(), {2}).value();
  const Schedule lowered = Lower(split, {.reduce_gradients = true}).value();
  EXPECT_EQ(ListOf(lowered, 0),
            "F0.0 F1.0 BW1.0 BW0.0 F0.1 F1.1 BW1.1 REDUCE1 BW0.1 REDUCE0 STEP0 STEP1");
}

TEST(SplitStages, KeepsSchedulesPerformable) {
  for (const Generator& generator : Generators()) {
    const Schedule whole = generator.generate({.ranks = 3, .micro_batches = 6}).value();
    const std::vector<int> parts(static_cast<size_t>(whole.num_stages()), 2);
    const absl::StatusOr<Schedule> split = SplitStages(whole, parts);
    if (generator.name == "dualpipe-v") {
      EXPECT_THAT(split, IsRefused("+"));
      continue;
    }
    ASSERT_OK(split);
    for (const Transfers transfers : {Transfers::kSeparate, Transfers::kGrouped}) {
      const LoweringOptions options = {.reduce_gradients = true, .transfers = transfers};
      EXPECT_OK(Validate(Lower(*split, options).value(), transfers)) << generator.name;
    }
  }
}

TEST(SplitStages, RefusesWhatItCannotDivide) {
  const Schedule whole = OneFOneB({2, 2}).value();
  for (const std::vector<int>& parts : {std::vector<int>{1}, {1, 0}, {1, 1, 1}}) {
    EXPECT_THAT(SplitStages(whole, parts), IsRefused("each of 2 stages"));
  }
  EXPECT_THAT(SplitStages(Lower(whole).value(), {1, 1}), IsRefused("RECV_B0.0"));
}

}  // namespace
}  // namespace stagecoach::schedule
