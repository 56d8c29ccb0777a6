#include "tools/stagecoach/terminal/bars.h"

#include <limits>
#include <string>
#include <tuple>

#include "base/text/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

engine::FitProgress Halfway() {
  return {.epoch = 1,
          .step = 20,
          .steps = 40,
          .loss = 0.5,
          .samples_per_second = 1234.4,
          .remaining = absl::Seconds(90)};
}

TEST(Bar, FillsInEighths) {
  EXPECT_EQ(Bar(0.0, 4), "    ");
  EXPECT_EQ(Bar(0.5, 4), "██  ");
  EXPECT_EQ(Bar(5.0 / 32, 4), "▋   ");
  EXPECT_EQ(Bar(1.0, 4), "████");
}

TEST(Bar, IsAlwaysAsWideAsAsked) {
  for (int i = -10; i <= 130; ++i) EXPECT_EQ(base::Width(Bar(i / 120.0, 15)), 15) << i;
}

TEST(Bar, TakesSharesOutOfRangeAsEmptyOrFull) {
  EXPECT_EQ(Bar(-1.0, 3), "   ");
  EXPECT_EQ(Bar(7.0, 3), "███");
  EXPECT_EQ(Bar(std::numeric_limits<double>::quiet_NaN(), 3), "   ");
  EXPECT_EQ(Bar(std::numeric_limits<double>::infinity(), 3), "███");
}

TEST(ProgressLine, TellsAllThatMatters) {
  EXPECT_EQ(ProgressLine(Halfway(), 2, 78),
            "epoch 1/2  ████████▌           50 %  loss 0.5000  1,234 samples/s  1m 30s left");
}

TEST(ProgressLine, CountsTokensWhereThereAreAny) {
  EXPECT_THAT(ProgressLine(Halfway(), 2, 100, /*tokens=*/10), HasSubstr("  12,344 tokens/s  "));
}

TEST(ProgressLine, NeverExceedsTheTerminal) {
  for (int columns = 9; columns <= 200; ++columns) {
    EXPECT_LE(base::Width(ProgressLine(Halfway(), 2, columns)), static_cast<size_t>(columns));
  }
}

TEST(ProgressLine, LeavesOutTheBarFirst) {
  EXPECT_EQ(ProgressLine(Halfway(), 2, 60),
            "epoch 1/2   50 %  loss 0.5000  1,234 samples/s  1m 30s left");
}

TEST(ProgressLine, SaysWhenAnEpochIsEvaluated) {
  engine::FitProgress progress = Halfway();
  progress.step = progress.steps;
  EXPECT_THAT(ProgressLine(progress, 2, 100), HasSubstr("evaluating"));
  EXPECT_THAT(ProgressLine(progress, 2, 100), Not(HasSubstr("left")));
}

TEST(ProgressLine, SaysHundredPercentOnlyAtTheEnd) {
  engine::FitProgress progress = Halfway();
  progress.steps = 1000;
  progress.step = 999;
  EXPECT_THAT(ProgressLine(progress, 2, 100), HasSubstr(" 99 %"));
}

TEST(PlainProgress, TellsAllThatMatters) {
  EXPECT_EQ(PlainProgress(Halfway(), 2),
            "epoch 1/2   50 %  loss 0.5000  1,234 samples/s  1m 30s left");
}

// Returns how many of the `steps` steps of an epoch pass until a line is due, if each takes `each`.
int StepsUntilDue(ProgressPace& pace, absl::Time start, int64_t steps, absl::Duration each) {
  for (int step = 1;; ++step) {
    if (pace.IsDue({.step = step, .steps = steps}, start + step * each)) return step;
  }
}

TEST(ProgressPace, IsHalfAMinuteOrATenthOfAnEpochWhicheverIsLater) {
  const absl::Time start = absl::UnixEpoch();
  for (const auto& [steps, each, due] :
       {std::tuple(1000, absl::Milliseconds(100), 300), std::tuple(1000, absl::Seconds(1), 100),
        std::tuple(5, absl::Seconds(60), 1)}) {
    ProgressPace pace(start);
    EXPECT_EQ(StepsUntilDue(pace, start, steps, each), due) << steps;
    // The next line takes as many again.
    EXPECT_EQ(StepsUntilDue(pace, start + due * each, steps, each), due) << steps;
  }
}

}  // namespace
}  // namespace stagecoach::tools
