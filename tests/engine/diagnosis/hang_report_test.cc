#include "engine/diagnosis/hang_report.h"

#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/diagnosis/recorded_ranks.h"

namespace stagecoach::engine {
namespace {

using schedule::Op;

constexpr absl::Duration kPatience = absl::Seconds(5);

// Records of a hang at a time in ms. Rank 1 has started an action at 1,000; rank 0 has waited for
// it since 900. The longest action so far took 1,250 ms from its start, and a wait was longer.
class HeldUp {
 public:
  HeldUp()
      : ranks_{RecordedRank(0, 2)
                   .Add(Op::kReduceGradients, 0, {-900, -900, 10}, Awaited::kReplicas)
                   .Add(Op::kForward, 0, {-600, -550, 700}, Awaited::kMessage, 1)
                   .Add(Op::kBackward, 0, {900, 0, 0}, Awaited::kMessage, 1),
               RecordedRank(1, 2)
                   .Add(Op::kBackward, 0, {600, 600, 650})
                   .Add(Op::kForward, 0, {700, 710, 990}, Awaited::kMessage, 0)
                   .Add(Op::kBackward, 0, {990, 1000, 0})} {}

  std::optional<HangReport> At(int64_t ms) const {
    return FindHang(ranks_, ms * 1'000'000, kPatience);
  }
  std::vector<RankRecord>& ranks() { return ranks_; }

 private:
  std::vector<RankRecord> ranks_;
};

TEST(HangReport, IsARunWhereNothingHappensInTheMiddleOfAnAction) {
  const std::optional<HangReport> still = HeldUp().At(6000);
  ASSERT_TRUE(still.has_value());
  EXPECT_EQ(still->device, 1);
  EXPECT_EQ(still->place, "in the backward pass of micro-batch 0 in step 57");
  EXPECT_EQ(still->since, absl::Seconds(5));
  EXPECT_FALSE(HeldUp().At(5999).has_value());
}

TEST(HangReport, MustLastFourTimesAsLongAsAnyAction) {
  HeldUp run;
  run.ranks()[0].actions[1].ended_ns += 250'000'000;  // 1,500 ms
  EXPECT_FALSE(run.At(6999).has_value());
  EXPECT_TRUE(run.At(7000).has_value());
}

TEST(HangReport, IsNoneWhileAnotherRankComesOn) {
  HeldUp run;
  run.ranks()[0].actions[2].begun_ns = 1'100'000'000;
  EXPECT_FALSE(run.At(6000).has_value());
  EXPECT_TRUE(run.At(6100).has_value());
}

TEST(HangReport, IsNoneWhereTheRankThatOthersWaitForIsBetweenSteps) {
  HeldUp run;
  run.ranks()[1].actions[2].ended_ns = 1'000'000'000;
  EXPECT_FALSE(run.At(60'000).has_value());
}

// The first action of its kind may take long: a network's actions may differ in size.
TEST(HangReport, IsNoneInAnActionThatTheRankHasNotDoneBefore) {
  HeldUp first;
  first.ranks()[1].actions.erase(first.ranks()[1].actions.begin());
  EXPECT_FALSE(first.At(60'000).has_value());
  HeldUp evaluation;
  evaluation.ranks()[1].actions[0].trains = false;
  EXPECT_FALSE(evaluation.At(60'000).has_value());
}

TEST(HangReport, IsNoneWhereARankHasFailedOrNotBegun) {
  HeldUp failed;
  failed.ranks()[0].closed_ns = 950'000'000;
  EXPECT_FALSE(failed.At(60'000).has_value());
  HeldUp beginning;
  beginning.ranks()[1].actions.clear();
  EXPECT_FALSE(beginning.At(60'000).has_value());
}

}  // namespace
}  // namespace stagecoach::engine
