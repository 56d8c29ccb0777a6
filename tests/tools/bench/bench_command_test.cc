#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/bench/sample_results.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Arguments SmallBench(const Arguments& more) {
  return Joined({"bench", "--layers", "4", "--width", "16", "--global-batch-size", "16",
                 "--micro-batches", "4", "--repeats", "2", "--warm-up", "1"},
                more);
}

nlohmann::json Measured(const Arguments& more) {
  const Finished run = RunStagecoach(SmallBench(Joined({"--output", "json"}, more)));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  return run.Events().at(0);
}

TEST(Bench, TakesAModelOfTokensWithoutData) {
  const Finished run = RunStagecoach(
      {"bench", "--model", "gpt2:blocks=1,width=16,heads=2,context=8,vocabulary=32,default",
       "--layers", "4", "--width", "16", "--devices", "2", "--global-batch-size", "4",
       "--micro-batches", "2", "--repeats", "1", "--no-prediction", "--output", "json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const nlohmann::json rows = run.Events().at(0)["rows"];
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[1]["model"], "default");
  EXPECT_FALSE(rows[1].contains("tokens_per_sample"));
  const nlohmann::json& row = rows[0];
  EXPECT_EQ(row["tokens_per_sample"], 8);
  EXPECT_DOUBLE_EQ(row["tokens_per_second"].get<double>(),
                   8 * row["samples_per_second"].get<double>());
  EXPECT_FALSE(row.contains("predicted_step_ms"));
}

TEST(Bench, TriesAgainWhatCouldNotBeRun) {
  const testing::TestFolder folder;
  const std::string file = (folder.path() / "a.json").string();
  const Arguments bench = {"--devices", "2", "--no-prediction", "--results", file};
  nlohmann::json results = Measured(bench);
  nlohmann::json failed = {{"error", "no room"}};
  for (const char* key : {"model", "precision", "devices", "replicas", "schedule", "micro_batches",
                          "batch", "threads_per_device"}) {
    failed[key] = results["rows"][0][key];
  }
  results["rows"][0] = failed;
  ASSERT_OK(base::WriteFileAtomically(file, results.dump()));
  const nlohmann::json row = Measured(bench)["rows"][0];
  EXPECT_FALSE(row.contains("error"));
  EXPECT_THAT(row["steps_ms"], SizeIs(2));
}

TEST(InterruptedBench, HasTheRowsSoFarAndGoesOn) {
  const testing::TestFolder folder;
  const std::string file = (folder.path() / "a.json").string();
  const Arguments bench =
      SmallBench({"--devices", "2", "--schedule", "1f1b,gpipe", "--visits", "1000",
                  "--no-prediction", "--results", file, "--output", "json"});
  Child child(bench);
  const absl::Time patience = absl::Now() + absl::Minutes(2);
  while (!base::Exists(file)) ASSERT_LT(absl::Now(), patience);
  child.Signal(SIGINT);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, kStopped);
  ExpectOneLine(run.err, HasSubstr("stopped by a signal: the same command continues from "));
  EXPECT_THAT(run.Events().at(0)["rows"][0]["steps_ms"], SizeIs(Gt(1)));
}

TEST(BenchCompare, FailsWhereARowGotSlower) {
  const testing::TestFolder folder;
  const std::string fast = (folder.path() / "fast.json").string();
  const std::string slow = (folder.path() / "slow.json").string();
  ASSERT_OK(base::WriteFileAtomically(
      fast, ToJson(SampleResults({SampleRow("1f1b", 2, {10, 11})})).dump()));
  ASSERT_OK(base::WriteFileAtomically(
      slow, ToJson(SampleResults({SampleRow("1f1b", 2, {20, 21})})).dump()));
  const Finished slower = RunStagecoach({"bench", "compare", fast, slow});
  EXPECT_EQ(slower.exit_status, 1);
  EXPECT_THAT(slower.out, HasSubstr("+95.2 %  slower\n"));
  const Finished faster = RunStagecoach({"bench", "compare", slow, fast, "--json"});
  EXPECT_EQ(faster.exit_status, 0);
  EXPECT_EQ(faster.Events().at(0)["rows"][0]["verdict"], "faster");
  const Finished none = RunStagecoach({"bench", "compare", slow, slow + "x"});
  EXPECT_EQ(none.exit_status, kStatusBadData);
  EXPECT_THAT(none.out, IsEmpty());
}

TEST(BenchCompare, RefusesWhatItWouldNotDo) {
  const testing::TestFolder folder;
  const std::string one = (folder.path() / "one.json").string();
  const std::string other = (folder.path() / "other.json").string();
  ASSERT_OK(
      base::WriteFileAtomically(one, ToJson(SampleResults({SampleRow("1f1b", 2, {1})})).dump()));
  ASSERT_OK(
      base::WriteFileAtomically(other, ToJson(SampleResults({SampleRow("zb-v", 2, {1})})).dump()));
  const Finished flag = RunStagecoach({"bench", "--devices", "3", "compare", one, one});
  EXPECT_EQ(flag.exit_status, kStatusUsage);
  ExpectOneLine(flag.err, HasSubstr("--devices is not for compare"));
  const Finished nothing = RunStagecoach({"bench", "compare", one, other});
  EXPECT_EQ(nothing.exit_status, kStatusBadData);
  ExpectOneLine(nothing.err, HasSubstr("has no row of those in "));
}

}  // namespace
}  // namespace stagecoach::tools
