// The output of a training run.

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/file.h"
#include "base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tools/stagecoach/terminal/exit_status.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::vector<std::string> PrintingRun(const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"train",
                                        "--data",
                                        "synthetic:400x16x4",
                                        "--layers",
                                        "6",
                                        "--width",
                                        "16",
                                        "--global-batch-size",
                                        "40",
                                        "--micro-batches",
                                        "4",
                                        "--epochs",
                                        "3"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<nlohmann::json> EventsOf(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = PrintingRun(more);
  arguments.push_back("--json");
  const Finished run = RunStagecoach(arguments);
  STAGECOACH_CHECK(run.exit_status == 0, run.err);
  EXPECT_THAT(run.err, IsEmpty());
  return run.Events();
}

TEST(Json, TellsPlanEpochsAndEnd) {
  const std::vector<nlohmann::json> events = EventsOf({});
  ASSERT_THAT(events, SizeIs(5));
  EXPECT_EQ(events[0]["event"], "plan");
  for (int epoch = 1; epoch <= 3; ++epoch) {
    EXPECT_EQ(events[epoch]["event"], "epoch");
    EXPECT_EQ(events[epoch]["epoch"], epoch);
  }
  EXPECT_EQ(events[4]["event"], "end");
}

TEST(Json, EpochHasTheNumbersThatScriptsReadAndTheyArePlausible) {
  const nlohmann::json epoch = EventsOf({})[1];
  EXPECT_GT(epoch["loss"], 0.0);
  EXPECT_GT(epoch["samples_per_second"], 0.0);
  for (const char* accuracy : {"train_accuracy", "test_accuracy"}) {
    EXPECT_GE(epoch[accuracy], 0.0);
    EXPECT_LE(epoch[accuracy], 1.0);
  }
}

TEST(Json, EndTellsWhatEachDeviceHeld) {
  const nlohmann::json end = EventsOf({"--stages", "3", "--schedule", "1f1b"}).back();
  EXPECT_EQ(end["steps"], 30);
  EXPECT_EQ(end["stopped"], false);
  EXPECT_THAT(end["step_losses_hash"].get<std::string>(), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_THAT(end["parameters_hash"].get<std::string>(), MatchesRegex("[0-9a-f]{32}"));
  ASSERT_THAT(end["devices"], SizeIs(3));
  int next_layer = 0;
  for (const nlohmann::json& device : end["devices"]) {
    ASSERT_THAT(device["stages"], SizeIs(1));
    EXPECT_EQ(device["parameters"], device["stages"][0]["parameters"]);
    EXPECT_EQ(device["stages"][0]["first_layer"], next_layer);
    next_layer = device["stages"][0]["last_layer"].get<int>() + 1;
    EXPECT_GT(device["busy"], 0.0);
    EXPECT_LE(device["busy"], 1.0);
  }
  EXPECT_EQ(next_layer, 6);
}

TEST(Json, MeasuredPeaksEqualThePredictedOnes) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    const std::vector<nlohmann::json> events = EventsOf({"--schedule", schedule});
    const nlohmann::json& predicted = events[0]["devices"];
    const nlohmann::json& measured = events.back()["devices"];
    ASSERT_EQ(measured.size(), predicted.size());
    for (size_t i = 0; i < measured.size(); ++i) {
      EXPECT_EQ(measured[i]["measured_peak_bytes"], predicted[i]["predicted_peak_bytes"])
          << schedule;
      EXPECT_EQ(measured[i]["measured_stash_bytes"], predicted[i]["memory_bytes"]["stash"])
          << schedule;
    }
  }
}

TEST(Json, StashesAsManyMicroBatchesAsTheScheduleSays) {
  constexpr int kStages = 4, kMicroBatches = 5;
  const nlohmann::json one_f_one_b = EventsOf({"--micro-batches", "5"}).back();
  for (const nlohmann::json& device : one_f_one_b["devices"]) {
    EXPECT_EQ(device["peak_stashed"],
              std::min(kStages - device["stages"][0]["stage"].get<int>(), kMicroBatches));
  }
  const nlohmann::json gpipe = EventsOf({"--micro-batches", "5", "--schedule", "gpipe"}).back();
  for (const nlohmann::json& device : gpipe["devices"]) {
    EXPECT_EQ(device["peak_stashed"], kMicroBatches);
  }
}

TEST(Json, OfADeviceWithTwoStagesHasBoth) {
  const nlohmann::json end = EventsOf({"--stages", "2", "--schedule", "zb-v"}).back();
  ASSERT_THAT(end["devices"], SizeIs(2));
  EXPECT_EQ(end["devices"][0]["stages"][0]["stage"], 0);
  EXPECT_EQ(end["devices"][0]["stages"][1]["stage"], 3);
  EXPECT_EQ(end["devices"][1]["stages"][0]["stage"], 1);
  EXPECT_EQ(end["devices"][1]["stages"][1]["stage"], 2);
}

TEST(Json, ThePartitionNeverChangesTheAnswer) {
  const nlohmann::json one = EventsOf({"--stages", "1"}).back();
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--stages", "2"},
                                             {"--stages", "6"},
                                             {"--stages", "3", "--schedule", "gpipe"},
                                             {"--stages", "3", "--schedule", "zb-v"},
                                             {"--stages", "3", "--schedule", "auto"},
                                             {"--stages", "2", "--threads-per-device", "2"}}) {
    const nlohmann::json end = EventsOf(more).back();
    EXPECT_EQ(end["step_losses_hash"], one["step_losses_hash"]);
    EXPECT_EQ(end["parameters_hash"], one["parameters_hash"]);
  }
}

TEST(Json, TheSeedChangesTheAnswer) {
  EXPECT_NE(EventsOf({"--seed", "1"}).back()["parameters_hash"],
            EventsOf({"--seed", "2"}).back()["parameters_hash"]);
}

// Many calls may have failed or succeeded since the full device was detected.
TEST(Output, ToAFullDeviceSaysThatItIsFull) {
  const testing::TestFolder folder;
  const std::string err = (folder.path() / "err").string();
  const std::string train = "train --data synthetic:256x4x2 --layers 2 --width 4 --epochs 1";
  for (const std::string& command : {train + " --stages 1", "launch -p 2 -- " + train}) {
    const std::string line = absl::StrCat(ProgramPath(), " ", command, " > /dev/full 2> ", err);
    EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), kStatusCannotWrite);
    ExpectOneLine(base::ReadFile(err, 10'000).value(),
                  HasSubstr("cannot write the output: No space left on device"));
  }
}

TEST(Options, TheLastOneCounts) {
  EXPECT_THAT(EventsOf({"--stages", "4", "--stages", "2"})[0]["devices"], SizeIs(2));
}

// Each of these would be ignored, or would overwrite another.
TEST(Options, AreRefusedWhereNothingTakesThem) {
  const auto expect_refused = [](const Arguments& arguments, const std::string& line) {
    const Finished run = RunStagecoach(arguments);
    EXPECT_EQ(run.exit_status, kExitUsage) << run.out;
    ExpectOneLine(run.err, HasSubstr(line));
  };
  expect_refused(PrintingRun({"--label", "kind"}), "--label is for a .csv file");
  expect_refused(PrintingRun({"--tuning", "file"}), "--tuning are for --device cuda");
  expect_refused(PrintingRun({"--check-replicas", "5"}), "--check-replicas requires --replicas");
  expect_refused({"plan", "--format", "csv"}, "--format is of a file that --profile names");
  expect_refused({"simulate", "--html", ""}, "--html: expected a file");
  expect_refused({"simulate", "--html", "a", "--svg", "./b/../a"},
                 "--html and --svg name the same file");
  expect_refused({"plan", "--save", "a.json", "--export", "torch:a.json"},
                 "--save and --export torch name the same file");
}

TEST(Options, EachChangesTheResult) {
  const std::string usual = EventsOf({}).back()["parameters_hash"];
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--optimizer", "sgd"},
                                             {"--learning-rate", "1e-2"},
                                             {"--lr-schedule", "constant"},
                                             {"--warmup-steps", "0"},
                                             {"--min-lr", "1e-4"},
                                             {"--weight-decay", "0.5"},
                                             {"--beta1", "0.8"},
                                             {"--beta2", "0.9"},
                                             {"--clip-norm", "0.1"},
                                             {"--train-samples", "200"},
                                             {"--global-batch-size", "80"}}) {
    EXPECT_NE(EventsOf(more).back()["parameters_hash"], usual) << more[0];
  }
}

TEST(Text, ThroughAPipeHasNoControlCharacters) {
  const Finished run = RunStagecoach(PrintingRun());
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.err, IsEmpty());
  for (const std::string& line : run.OutLines()) {
    for (char c : line) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20) << line;
  }
}

TEST(Text, HasARowForEachEpoch) {
  const std::vector<std::string> lines = RunStagecoach(PrintingRun()).OutLines();
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("epoch "), HasSubstr(" loss "),
                                    HasSubstr(" train acc.  test acc.  test loss     time  "))));
  for (const char* epoch : {"1", "2", "3"}) {
    EXPECT_THAT(lines, Contains(AllOf(StartsWith(std::string("    ") + epoch + "  "),
                                      HasSubstr("█"), HasSubstr(" %"))));
  }
}

TEST(Text, EndsWithWhatEachStageHeld) {
  const Finished run = RunStagecoach(PrintingRun({"--stages", "3"}));
  EXPECT_THAT(run.out, AllOf(HasSubstr("peak  predicted"), HasSubstr("cpu:0"), HasSubstr("cpu:2"),
                             HasSubstr("trained 3 epochs (30 steps) in ")));
}

TEST(Terminal, RedrawsOneLineThatNeverWraps) {
  Child child(PrintingRun(), Child::Output::kTerminal);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, 0);
  const std::vector<std::string> drawn = absl::StrSplit(run.out, "\r\x1b[K");
  EXPECT_THAT(drawn, Contains(HasSubstr("epoch 3/3")));
  for (size_t i = 1; i < drawn.size(); ++i) {
    if (!absl::StartsWith(drawn[i], "epoch ")) continue;
    EXPECT_THAT(drawn[i], Not(HasSubstr("\n")));
    EXPECT_THAT(base::Width(drawn[i]), Le(79)) << drawn[i];
  }
}

}  // namespace
}  // namespace stagecoach::tools
