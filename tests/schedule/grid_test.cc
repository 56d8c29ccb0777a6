#include "schedule/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "schedule/generators.h"
#include "schedule/lowering.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr GridOptions kWide{.max_columns = 100000};

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

// Slots drawn on the first row.
int CountSlots(const std::string& grid) {
  const std::string row = Lines(grid).front();
  const std::vector<std::string> cells =
      absl::StrSplit(row.substr(row.find('|') + 1), ' ', absl::SkipEmpty());
  return static_cast<int>(cells.size());
}

TEST(Grid, DrawsOneFOneBAsByHand) {
  EXPECT_EQ(ToGrid(OneFOneB({2, 2}).value()),
            "rank 0 | F0 F1 .. .. B0 B0 .. B1 B1\n"
            "rank 1 | .. F0 B0 B0 F1 B1 B1 .. ..\n");
}

TEST(Grid, DrawsOneFOneBOfFourRanksAsByHand) {
  EXPECT_EQ(
      ToGrid(OneFOneB({4, 8}).value(), kWide),
      "rank 0 | F0 F1 F2 F3 .. .. .. .. .. .. B0 B0 F4 B1 B1 F5 B2 B2 F6 B3 B3 F7 B4 B4 .. B5 B5 "
      ".. B6 B6 .. B7 B7\n"
      "rank 1 | .. F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 F6 B4 B4 F7 B5 B5 .. B6 "
      "B6 .. B7 B7 .. ..\n"
      "rank 2 | .. .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 F6 B5 B5 F7 B6 B6 .. "
      "B7 B7 .. .. .. ..\n"
      "rank 3 | .. .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 F6 B6 B6 F7 B7 B7 "
      ".. .. .. .. .. ..\n");
}

TEST(Grid, DrawsGPipeOfFourRanksAsByHand) {
  EXPECT_EQ(ToGrid(GPipe({4, 3}).value()),
            "rank 0 | F0 F1 F2 .. .. .. .. .. .. .. .. .. B0 B0 B1 B1 B2 B2\n"
            "rank 1 | .. F0 F1 F2 .. .. .. .. .. .. B0 B0 B1 B1 B2 B2 .. ..\n"
            "rank 2 | .. .. F0 F1 F2 .. .. .. B0 B0 B1 B1 B2 B2 .. .. .. ..\n"
            "rank 3 | .. .. .. F0 F1 F2 B0 B0 B1 B1 B2 B2 .. .. .. .. .. ..\n");
}

TEST(Grid, DrawsWeightGradientsInTheirOwnSlot) {
  EXPECT_EQ(ToGrid(ZeroBubbleH1()),
            "rank 0 | F0 F1 .. B0 W0 F2 B1 W1 B2 W2\n"
            "rank 1 | .. F0 B0 F1 B1 W0 F2 B2 W1 W2\n");
}

TEST(Grid, NamesTheStageWhereARankHasSeveral) {
  EXPECT_THAT(ToGrid(VPlacement()), HasSubstr("rank 1 | ..   F1.0 F2.0 F1.1 F2.1"));
}

TEST(Grid, MakespanFollowsTheBubbleFormula) {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 20; ++m) {
      for (const Generator& generator : Generators()) {
        EXPECT_EQ(CountSlots(ToGrid(generator.generate({p, m}).value(), kWide)), (m + p - 1) * 3)
            << generator.name << " p=" << p << " m=" << m;
      }
    }
  }
}

TEST(Grid, IsTheSameForALoweredSchedule) {
  for (const Schedule& compute : {OneFOneB({3, 5}).value(), ZeroBubbleH1(), VPlacement()}) {
    EXPECT_EQ(ToGrid(Lower(compute).value()), ToGrid(compute));
  }
}

TEST(Grid, AlignsRanksOfSeveralDigits) {
  const std::vector<std::string> lines = Lines(ToGrid(ForwardOnly({11, 1}).value()));
  EXPECT_EQ(lines[9].substr(0, 10), "rank 9  | ");
  EXPECT_EQ(lines[10].substr(0, 10), "rank 10 | ");
}

TEST(Grid, CutsALongGridInTheMiddleAndSaysSo) {
  EXPECT_EQ(ToGrid(OneFOneB({2, 8}).value(), {.max_columns = 8 + 2 + 5 * 3}),
            "rank 0 | F0 F1 .. ~ B7 B7\n"
            "rank 1 | .. F0 B0 ~ .. ..\n"
            "~ 22 of 27 slots left out\n");
}

TEST(Grid, NeverExceedsItsColumns) {
  const Schedule schedule = OneFOneB({4, 40}).value();
  for (int columns = 20; columns < 500; ++columns) {
    for (const std::string& line : Lines(ToGrid(schedule, {.max_columns = columns}))) {
      if (line.front() == '~') continue;
      EXPECT_LE(static_cast<int>(line.size()), columns);
    }
  }
}

TEST(Grid, CutKeepsASlotOnEitherSideHoweverNarrow) {
  EXPECT_THAT(ToGrid(OneFOneB({2, 2}).value(), {.max_columns = 0}), HasSubstr("| F0 ~ B1\n"));
}

TEST(Grid, EndsWhereNothingCanGoOnAndSaysWhere) {
  const Schedule stuck = FromText({0, 1}, 2, {"F0.0 BW0.0 F0.1 BW0.1", "F1.0 F1.1 BW1.0 BW1.1"});
  EXPECT_EQ(ToGrid(stuck),
            "rank 0 | F0 ..\n"
            "rank 1 | .. F0\n"
            "stuck: rank 0 before stage 0 BW micro-batch 0; rank 1 before stage 1 F micro-batch "
            "1\n");
}

TEST(Grid, OfAnImpossibleActionIsTheReason) {
  const Schedule broken = FromText({0, 1}, 1, {"F0.0 BW0.7", "F1.0 BW1.0"});
  EXPECT_THAT(ToGrid(broken), HasSubstr("rank 0, position 1 (stage 0 BW micro-batch 7)"));
}

}  // namespace
}  // namespace stagecoach::schedule
