#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/bench/sample_results.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::Each;
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

TEST(Bench, MeasuresAndPredictsEachRow) {
  const nlohmann::json json =
      Measured({"--devices", "1,2", "--replicas", "1,2", "--schedule", "1f1b,zb-v"});
  ASSERT_THAT(json["rows"], SizeIs(7));  // one device alone has one schedule
  for (const nlohmann::json& row : json["rows"]) {
    ASSERT_FALSE(row.contains("error")) << row;
    EXPECT_THAT(row["steps_ms"], AllOf(SizeIs(2), Each(Gt(0.0))));
    for (const char* positive : {"step_ms", "samples_per_second", "predicted_step_ms", "flops",
                                 "peak_flops_per_second", "peak_share", "bubble", "peak_bytes"}) {
      EXPECT_GT(row[positive], 0) << positive;
    }
    EXPECT_EQ(row["peak_bytes"], row["predicted_peak_bytes"]);
    EXPECT_EQ(row["sent_bytes"], row["predicted_sent_bytes"]);
    const bool sends = row["devices"] > 1 || row["replicas"] > 1;
    EXPECT_EQ(row["sent_bytes"] > 0, sends) << row;
    EXPECT_EQ(row["batch"], 16);
    EXPECT_EQ(row["micro_batches"], 4);
  }
  EXPECT_EQ(json["options"], "--layers 4 --width 16 --warm-up 1");
  EXPECT_GE(json["machine"]["processors"], 1);
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

TEST(Bench, GoesOnWhereARowCannotBeRun) {
  const nlohmann::json json =
      Measured({"--devices", "2", "--micro-batches", "4,3", "--no-prediction"});
  EXPECT_FALSE(json["rows"][0].contains("error"));
  EXPECT_THAT(json["rows"][1]["error"], HasSubstr("does not divide into 3 equal micro-batches"));
  const Finished none = RunStagecoach(SmallBench({"--devices", "2", "--micro-batches", "3"}));
  EXPECT_EQ(none.exit_status, kStatusBadConfiguration);
  EXPECT_THAT(none.out, HasSubstr("does not divide"));
}

TEST(Bench, KeepsResultsAndGoesOnFromThem) {
  const testing::TestFolder folder;
  const std::string file = (folder.path() / "a.json").string();
  const Arguments some = {"--devices", "2", "--no-prediction", "--results", file};
  const nlohmann::json first = Measured(some);
  const Arguments all = Joined(some, {"--schedule", "1f1b,gpipe"});
  const nlohmann::json second = Measured(all);
  ASSERT_THAT(second["rows"], SizeIs(2));
  EXPECT_EQ(second["rows"][0], first["rows"][0]);
  // Rows that are not requested stay in the file, but are not shown.
  EXPECT_THAT(Measured(some)["rows"], SizeIs(1));
  EXPECT_EQ(Measured(all), second);
  const nlohmann::json other_row = Measured(Joined(some, {"--schedule", "zb-h1"}));
  EXPECT_EQ(other_row["rows"][0]["schedule"], "zb-h1");
  EXPECT_EQ(Measured(all), second);
  // A second visit of all rows reuses what is there.
  const nlohmann::json third = Measured(Joined(all, {"--visits", "2"}));
  for (size_t row = 0; row < 2; ++row) {
    ASSERT_THAT(third["rows"][row]["steps_ms"], SizeIs(4));
    for (size_t step = 0; step < 2; ++step) {
      EXPECT_EQ(third["rows"][row]["steps_ms"][step], second["rows"][row]["steps_ms"][step]);
    }
  }
  EXPECT_EQ(Measured(Joined(all, {"--visits", "2"})), third);
  const Finished other = RunStagecoach(SmallBench(Joined(some, {"--width", "8"})));
  EXPECT_EQ(other.exit_status, kStatusBadConfiguration);
  ExpectOneLine(other.err, AllOf(HasSubstr("--results: "), HasSubstr("is of other options: "),
                                 HasSubstr("--width 16"), HasSubstr("--width 8")));
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

// Writes a model file of a network of that width.
void WriteModel(const std::string& path, int width) {
  ASSERT_OK(base::WriteFileAtomically(
      path, absl::StrCat("[[layer]]\ntype = \"linear\"\noutputs = ", width,
                         "\n[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n")));
}

TEST(Bench, KeepsWhatItHasOfARowThatCannotBeRunAgain) {
  const testing::TestFolder folder;
  const std::string model = (folder.path() / "m.toml").string();
  const std::string file = (folder.path() / "a.json").string();
  WriteModel(model, 8);
  const Arguments bench = {
      "bench",    "--model",   model, "--devices",       "1",         "--global-batch-size",
      "16",       "--repeats", "2",   "--no-prediction", "--results", file,
      "--output", "json"};
  ASSERT_EQ(RunStagecoach(bench).exit_status, 0);
  std::filesystem::remove(model);
  const Finished again = RunStagecoach(Joined(bench, {"--visits", "3"}));
  EXPECT_EQ(again.exit_status, 0);
  ExpectOneLine(again.err, AllOf(HasSubstr("1 device"), HasSubstr("m.toml")));
  EXPECT_THAT(again.Events().at(0)["rows"][0]["steps_ms"], SizeIs(2));
  EXPECT_THAT(nlohmann::json::parse(base::ReadFile(file, 1 << 20).value())["rows"][0]["steps_ms"],
              SizeIs(2));
  // Results of another model are not mixed in either.
  WriteModel(model, 9);
  const Finished other = RunStagecoach(Joined(bench, {"--visits", "3"}));
  EXPECT_EQ(other.exit_status, kStatusBadConfiguration);
  ExpectOneLine(other.err, HasSubstr("m.toml as it was before: name another file"));
}

TEST(Bench, TakesDevicesAndMicroBatchesOfAScheduleFile) {
  const testing::TestFolder folder;
  const std::string file = (folder.path() / "a.csv").string();
  ASSERT_OK(base::WriteFileAtomically(file, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"));
  const Finished run =
      RunStagecoach({"bench", "--layers", "4", "--width", "16", "--global-batch-size", "16",
                     "--repeats", "1", "--schedule", file, "--output", "json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const nlohmann::json rows = run.Events().at(0)["rows"];
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_FALSE(rows[0].contains("error")) << rows;
  EXPECT_EQ(rows[0]["devices"], 2);
  EXPECT_EQ(rows[0]["micro_batches"], 2);
  const Finished wrong = RunStagecoach({"bench", "--schedule", file, "--devices", "3,4"});
  EXPECT_EQ(wrong.exit_status, kStatusBadConfiguration);
  ExpectOneLine(wrong.err, HasSubstr("--devices is 3, but the schedule in the file has 2"));
}

TEST(Bench, EndsWithTheStatusOfTheFirstErrorIfNoRowCanBeRun) {
  EXPECT_EQ(RunStagecoach({"bench", "--model", "none.toml"}).exit_status, kStatusBadData);
  EXPECT_EQ(RunStagecoach({"bench", "--label", "x"}).exit_status, kStatusUsage);
  EXPECT_EQ(RunStagecoach(SmallBench({"--devices", "1,2", "--micro-batches", "1", "--scaling",
                                      "weak", "--global-batch-size", "8"}))
                .exit_status,
            0);
  const Finished weak =
      RunStagecoach(SmallBench({"--devices", "2,3", "--micro-batches", "1", "--scaling", "weak"}));
  EXPECT_EQ(weak.exit_status, kStatusUsage);
  ExpectOneLine(weak.err, HasSubstr("no whole number for 3"));
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
  ExpectOneLine(run.err, HasSubstr("stopped by a signal: the same command goes on from "));
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
