#include "schedule/render/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text/utf8.h"
#include "tests/schedule/traces/traces.h"

namespace stagecoach::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

// Returns what stands between the bars of a row.
std::string Row(const std::string& timeline, size_t rank) {
  const std::vector<std::string> parts = absl::StrSplit(Lines(timeline)[rank], '|');
  return parts[1];
}

// Draws a timeline with that many columns of time, for fewer than 10 ranks.
std::string Draw(const Trace& trace, int cells) {
  return ToTimeline(trace, {.columns = cells + 9});
}

TEST(Timeline, DrawsOneFOneBAsByHand) {
  const Trace trace = TraceFromText({0, 1}, 2,
                                    {"F0.0@0-4 F0.1@4-8 BW0.0@8:16-24 BW0.1@24:28-36",
                                     "F1.0@0:4-8 BW1.0@8-16 F1.1@16-20 "
                                     "BW1.1@20-28"});
  EXPECT_EQ(Draw(trace, 36),
            "rank 0 |F0--F1--........B0======....B1======|\n"
            "rank 1 |....F0--B0======F1--B1======........|\n"
            "        +---------+---------+---------+------\n"
            "        0 ns      10        20        30\n"
            "F forward  B= backward: input and weights\n"
            ". idle\n");
}

TEST(Timeline, TellsInputFromWeightsAndStages) {
  const Trace trace = TraceFromText(
      {0, 0, 0}, 13,
      {"F0.0@0-4 F1.0@4-8 F2.12@8-12 B1.3@12-16 W1.3@16-20 B2.0@20-24 REDUCE0@24-26 STEP1@26-30"});
  // Concurrent operations are left out.
  EXPECT_EQ(Row(Draw(trace, 30), 0), "F0--f0--F12-b3--w3--B0--..s---");
  EXPECT_THAT(Draw(trace, 90), HasSubstr("F forward  B backward: input  W backward: weights"));
  EXPECT_THAT(Draw(trace, 90), HasSubstr("weights  S step"));
  EXPECT_THAT(Draw(trace, 90), HasSubstr("lower case: every second stage of a rank"));
}

TEST(Timeline, HasNoLowerCaseForOneStagePerRank) {
  EXPECT_THAT(Draw(SimulatedTrace("1f1b", 3, 4, Sends::kBuffered), 80),
              Not(HasSubstr("lower case")));
}

TEST(Timeline, DrawsAnOverlappedPairAsOne) {
  const Trace trace = TraceFromText({0, 0}, 4,
                                    {"F0.3+@0-10 BW1.1@0-10 F0.2+@10-13 BW1.0@10-13 F1.2+@13-16 "
                                     "BW1.2@16-20"});
  EXPECT_EQ(Row(Draw(trace, 20), 0), "F3&b1-----&--f2-b2==");
}

TEST(Timeline, ShowsOnlyTheLetterWhereThereIsNoRoom) {
  const Trace trace = TraceFromText({0}, 200, {"F0.0@0-1 F0.1@1-2 F0.10@2-4 F0.100@4-8 F0.8@8-10"});
  EXPECT_EQ(Row(Draw(trace, 10), 0), "FFF-F100F8");
}

TEST(Timeline, ShowsWhatARankDidForMostOfAColumn) {
  // The action of each of the ten columns of 10 ns.
  const Trace trace = TraceFromText(
      {0}, 9,
      {"F0.0@0-4 F0.1@10-16 F0.2@23-25 F0.3@26-29 F0.4@29-31 B0.0@40-43 F0.5@43-45 F0.6@45-47 "
       "STEP0@99-100"});
  EXPECT_EQ(Row(Draw(trace, 10), 0), ".FF.F.....");
}

// Returns how long the rank did what each letter stands for within a column; idle is '.'.
std::map<char, double> Shares(const std::vector<TimedAction>& list, double begin, double end) {
  std::map<char, double> shares = {{'.', end - begin}};
  for (const TimedAction& timed : list) {
    if (IsTransfer(timed.action.op)) continue;
    const double share = std::min(end, static_cast<double>(timed.end_ns)) -
                         std::max(begin, static_cast<double>(timed.start_ns));
    if (share <= 0) continue;
    shares[OpName(timed.action.op)[0]] += share;
    shares['.'] -= share;
  }
  return shares;
}

TEST(Timeline, IsIdleWhereIdleTimePrevails) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) {
    const Trace trace = SimulatedTrace(name, 4, 9, Sends::kRendezvous);
    for (const int cells : {10, 33, 91, 300}) {
      const std::string timeline = Draw(trace, cells);
      const double width = static_cast<double>(trace.step_ns) / cells;
      for (size_t rank = 0; rank < trace.actions.size(); ++rank) {
        const std::string row = Row(timeline, rank);
        ASSERT_EQ(row.size(), static_cast<size_t>(cells));
        for (size_t c = 0; c < row.size(); ++c) {
          const double begin = width * static_cast<double>(c);
          const std::map<char, double> shares = Shares(trace.actions[rank], begin, begin + width);
          double all = 0;
          for (const auto& [letter, share] : shares) all += share;
          const double margin = shares.at('.') - all / 2;
          if (std::abs(margin) < 1e-3) continue;
          EXPECT_EQ(row[c] == '.', margin > 0) << name << "\n" << timeline << "column " << c;
        }
      }
    }
  }
}

// With this many micro-batches there is no room for their numbers except at the beginning and the
// end.
TEST(Timeline, OfManyMicroBatchesIsItsBeginningAndItsEnd) {
  std::string list;
  for (int i = 0; i < 200; ++i) {
    absl::StrAppend(&list, i == 0 ? "" : " ", "F0.", i, "@", 10 * i, "-", 10 * (i + 1));
  }
  const Trace trace = TraceFromText({0}, 200, {list});
  EXPECT_EQ(Draw(trace, 57),
            "rank 0 |F0--F1--F2--F3--F4--F5--F6--\u2026F193F194F195F196F197F198F199|\n"
            "        +-------------------+-------\u2026--------+-------------------+\n"
            "        0 ns                50               1950\n"
            "F forward  . idle\n");
  // The whole step if there is room, or hardly any.
  for (const int cells : {39, 400}) {
    EXPECT_THAT(Draw(trace, cells), Not(HasSubstr("\u2026")));
  }
  for (const char* name : {"1f1b", "zb-h1", "interleaved"}) {
    const std::string timeline = Draw(SimulatedTrace(name, 4, 64, Sends::kBuffered), 90);
    for (size_t rank = 0; rank < 4; ++rank) {
      const std::string row = Row(timeline, rank);
      EXPECT_THAT(row, HasSubstr("F0-"));
      EXPECT_THAT(row, HasSubstr("63"));
      EXPECT_EQ(base::Width(row), 90) << row;
    }
  }
}

TEST(Timeline, NeverExceedsItsColumns) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = SimulatedTrace(name, 4, 12, Sends::kBuffered);
    for (int columns = 45; columns < 300; columns += 3) {
      for (const std::string& line : Lines(ToTimeline(trace, {.columns = columns}))) {
        EXPECT_LE(static_cast<int>(base::Width(line)), columns) << line;
      }
    }
  }
}

TEST(Timeline, KeepsTenColumnsOfTimeHoweverNarrow) {
  const Trace trace = SimulatedTrace("1f1b", 2, 4, Sends::kBuffered);
  for (const int columns : {-5, 0, 1, 19}) {
    EXPECT_EQ(Row(ToTimeline(trace, {.columns = columns}), 0).size(), 10U);
  }
}

TEST(Timeline, AlignsRanksOfSeveralDigits) {
  const std::vector<std::string> lines =
      Lines(ToTimeline(SimulatedTrace("1f1b", 11, 2, Sends::kBuffered)));
  EXPECT_THAT(lines[9], StartsWith("rank 9  |"));
  EXPECT_THAT(lines[10], StartsWith("rank 10 |"));
}

TEST(Timeline, MarksNiceTimesInAFittingUnit) {
  const Trace trace = TraceFromText({0}, 1, {"F0.0@0-47000000"});
  const std::vector<std::string> lines = Lines(Draw(trace, 47));
  EXPECT_EQ(lines[1], "        +---------+---------+---------+---------+-------");
  EXPECT_EQ(lines[2], "        0 ms      10        20        30        40");
}

TEST(Timeline, OfAStepWithoutTimeIsIdle) {
  EXPECT_EQ(Row(Draw(TraceFromText({0}, 1, {"F0.0@0-0"}), 12), 0), "............");
}

TEST(Timeline, SurvivesTheLongestStep) {
  const Trace trace =
      TraceFromText({0}, 1, {"F0.0@0-4503599627370496 BW0.0@4503599627370496-9007199254740992"});
  EXPECT_THAT(Row(ToTimeline(trace, {.columns = 100000}), 0), HasSubstr("---B0==="));
}

TEST(Timeline, ColorsOnly) {
  const Trace trace = SimulatedTrace("dualpipe-v", 3, 8, Sends::kRendezvous);
  std::string plain = ToTimeline(trace, {.columns = 90, .color = true});
  EXPECT_THAT(plain, HasSubstr("\x1b[0m"));
  for (size_t at = plain.find('\x1b'); at != std::string::npos; at = plain.find('\x1b')) {
    plain.erase(at, plain.find('m', at) - at + 1);
  }
  EXPECT_EQ(plain, ToTimeline(trace, {.columns = 90}));
}

}  // namespace
}  // namespace stagecoach::schedule
