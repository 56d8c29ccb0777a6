// `simulate` with several schedules.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::TestDirectory;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

Finished Compared(const std::string& schedules, const std::string& micro_batches,
                  const Arguments& more = {}) {
  return RunStagecoach(Joined(
      {"simulate", "--schedule", schedules, "--micro-batches", micro_batches, "--stages", "4"},
      more));
}

nlohmann::json RowsOf(const std::string& schedules, const std::string& micro_batches,
                      const Arguments& more = {}) {
  const Finished run = Compared(schedules, micro_batches, Joined({"--json"}, more));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.Events(), SizeIs(1));
  return run.Events().at(0).at("rows");
}

std::vector<std::string> NamesOfBest(const nlohmann::json& rows) {
  std::vector<std::string> names;
  for (const nlohmann::json& row : rows) {
    if (row.value("best", false)) {
      names.push_back(absl::StrCat(row["schedule"].get<std::string>(), " of ",
                                   row["micro_batches"].get<int>()));
    }
  }
  return names;
}

TEST(CompareSchedules, EachRowIsWhatItsScheduleIsAlone) {
  nlohmann::json rows = RowsOf("1f1b,zb-v", "8,16");
  ASSERT_THAT(rows, SizeIs(4));
  size_t i = 0;
  for (const char* schedule : {"1f1b", "zb-v"}) {
    for (const char* micro_batches : {"8", "16"}) {
      nlohmann::json& row = rows[i++];
      const nlohmann::json alone = Compared(schedule, micro_batches, {"--json"}).Events().at(0);
      EXPECT_DOUBLE_EQ(row["micro_batches_per_second"],
                       1e3 * alone["micro_batches"].get<double>() / alone["step_ms"].get<double>());
      EXPECT_EQ(row["peak_stash"], 4);
      for (const char* own : {"micro_batches_per_second", "peak_stash", "best"}) row.erase(own);
      EXPECT_EQ(row, alone);
    }
  }
}

TEST(CompareSchedules, BestHasTheMostMicroBatchesPerSecond) {
  EXPECT_THAT(NamesOfBest(RowsOf("zb-v,1f1b", "8,16")), ElementsAre("zb-v of 16"));
}

TEST(CompareSchedules, OfEqualsTheBestNeedsTheLeastMemory) {
  EXPECT_THAT(NamesOfBest(RowsOf("gpipe,1f1b,gpipe", "8")), ElementsAre("1f1b of 8"));
}

TEST(CompareSchedules, SizesGivePeaksInBytes) {
  const std::string times = engine::WriteTestFile(
      TestDirectory(), "times.json",
      R"({"stages": [{"forward_ms": 1, "backward_ms": 1, "weight_ms": 1, "stash_bytes": 5000},
                     {"forward_ms": 1, "backward_ms": 1, "weight_ms": 1, "stash_bytes": 9000}]})");
  const Arguments flags = {"--stages", "2", "--times", times};
  const nlohmann::json rows = RowsOf("gpipe,1f1b", "4", flags);
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["peak_bytes"],
              std::max(row["ranks"][0]["peak_bytes"], row["ranks"][1]["peak_bytes"]));
  }
  EXPECT_LT(rows[1]["peak_bytes"], rows[0]["peak_bytes"]);
  EXPECT_THAT(Compared("gpipe,1f1b", "4", flags).out,
              AllOf(HasSubstr("peak memory"), ContainsRegex("1f1b \\* .* kB")));
}

TEST(CompareSchedules, AutoAndTheOthersAreComparedByItsObjective) {
  const Arguments span = {"--objective", "span"};
  const nlohmann::json rows = RowsOf("zb-h2,auto", "12", span);
  EXPECT_DOUBLE_EQ(rows[0]["micro_batches_per_second"], 12e3 / rows[0]["span_ms"].get<double>());
  EXPECT_LT(rows[0]["span_ms"], rows[0]["step_ms"]);
  EXPECT_THAT(Compared("zb-h2,auto", "12", span).out, HasSubstr("  span  "));
  EXPECT_EQ(Compared("zb-h2,1f1b", "12", span).exit_status, kStatusUsage);
}

TEST(CompareSchedules, WhatCannotBePerformedIsARowWithItsReason) {
  const std::string reason = "needs micro-batches divisible by ranks: 6 and 4";
  const nlohmann::json rows = RowsOf("interleaved,1f1b", "6,8");
  EXPECT_EQ(rows[0],
            (nlohmann::json{{"schedule", "interleaved"}, {"micro_batches", 6}, {"error", reason}}));
  EXPECT_EQ(NamesOfBest(rows), NamesOfBest(RowsOf("interleaved,1f1b", "8")));
  EXPECT_THAT(Compared("interleaved,1f1b", "6,8").out,
              HasSubstr(absl::StrCat("\ninterleaved                6  ", reason, "\n")));
}

TEST(CompareSchedules, WhereNothingCanBePerformedTheTableIsThereAndAnError) {
  const Finished run = Compared("interleaved", "6,7");
  EXPECT_EQ(run.exit_status, kStatusBadConfiguration);
  EXPECT_THAT(run.out, AllOf(HasSubstr("6 and 4"), HasSubstr("7 and 4")));
  ExpectOneLine(run.err, HasSubstr("none of these can be performed"));
}

TEST(CompareSchedules, AFileIsARowLikeOthers) {
  const std::string directory = TestDirectory();
  const std::string file = directory + "/zb-h1, of eight.json";
  ASSERT_EQ(Compared("zb-h1", "8", {"--save", file}).exit_status, 0);
  // A single schedule may have commas in its name.
  const Finished alone = RunStagecoach({"simulate", "--schedule", file});
  EXPECT_EQ(alone.exit_status, 0) << alone.err;
  const std::string plain = directory + "/a-name-longer-than-its-column.csv";
  ASSERT_EQ(Compared("zb-h1", "8", {"--save", plain}).exit_status, 0);
  const nlohmann::json rows = RowsOf(plain + ",zb-h1", "8,16");
  EXPECT_EQ(rows[0]["schedule"], plain);
  EXPECT_EQ(rows[0]["step_ms"], rows[2]["step_ms"]);
  EXPECT_THAT(rows[1]["error"].get<std::string>(), HasSubstr("the schedule in the file has 8"));
  EXPECT_EQ(Compared("nowhere.csv,1f1b", "8").exit_status, kStatusBadData);
}

TEST(CompareSchedules, TextFitsATerminal) {
  const std::string file = TestDirectory() + "/a-name-longer-than-its-column.csv";
  ASSERT_EQ(Compared("zb-h1", "8", {"--save", file}).exit_status, 0);
  const Finished run = Compared(absl::StrCat(file, ",dualpipe-v,interleaved"), "7,8,1024",
                                {"--forward", "1000", "--latency", "0.123"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.OutLines(), Each(SizeIs(Le(82))));  // an ellipsis has three bytes
  EXPECT_THAT(run.out, HasSubstr("\n\u2026its-column.csv "));
}

TEST(CompareSchedules, ThePageHasTheTableAndEveryTimeline) {
  const std::string page = TestDirectory() + "/page.html";
  ASSERT_EQ(Compared("interleaved,1f1b", "6,8", {"--html", page}).exit_status, 0);
  std::ifstream file(page);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("\"name\":\"interleaved, 8 micro-batches\""),
            HasSubstr("\"name\":\"1f1b, 6 micro-batches\""),
            HasSubstr("\"name\":\"1f1b, 8 micro-batches\""),
            Not(HasSubstr("\"name\":\"interleaved, 6 micro-batches\"")),
            HasSubstr("<td class=\"left\">needs micro-batches divisible by ranks: 6 and 4</td>"),
            HasSubstr("<dt>best</dt><dd>interleaved, 8 micro-batches</dd>")));
}

TEST(CompareSchedules, WhatIsOfOneScheduleIsRefused) {
  for (const char* flag : {"--svg", "--trace", "--save"}) {
    const std::string file = TestDirectory() + "/file.json";
    const Finished run = Compared("1f1b", "4,8", {flag, file});
    EXPECT_EQ(run.exit_status, kStatusUsage) << flag;
    EXPECT_THAT(run.out, IsEmpty());
    ExpectOneLine(run.err, HasSubstr(absl::StrCat(flag, " is of one schedule")));
  }
}

TEST(CompareSchedules, EveryPartOfAListIsRead) {
  ExpectOneLine(Compared("1f1b,zb-h3", "8").err, HasSubstr("did you mean zb-h1"));
  ExpectOneLine(Compared("1f1b,", "8").err, HasSubstr("\"\" is neither"));
  ExpectOneLine(Compared("1f1b", "8,x").err, HasSubstr("\"x\" is not a whole number"));
}

}  // namespace
}  // namespace stagecoach::tools
