// `simulate` with several schedules.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::TestDirectory;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
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

TEST(CompareSchedules, AutoAndTheOthersAreComparedByItsObjective) {
  const Arguments span = {"--objective", "span"};
  const nlohmann::json rows = RowsOf("zb-h2,auto", "12", span);
  EXPECT_DOUBLE_EQ(rows[0]["micro_batches_per_second"], 12e3 / rows[0]["span_ms"].get<double>());
  EXPECT_LT(rows[0]["span_ms"], rows[0]["step_ms"]);
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

}  // namespace
}  // namespace stagecoach::tools
