#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tools/stagecoach/terminal/exit_status.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(Help, OfTrainFitsTwoScreens) {
  const Finished help = RunStagecoach({"train", "--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.OutLines(), SizeIs(Le(92)));
  for (const std::string& line : help.OutLines()) EXPECT_THAT(line, SizeIs(Le(100)));
}

TEST(Help, OfTrainNamesTheFlagsThatEverythingLaterKeeps) {
  const Finished help = RunStagecoach({"train", "--help"});
  for (const char* flag :
       {"--devices", "--schedule", "--micro-batches", "--global-batch-size", "--epochs",
        "--train-samples", "--seed", "--threads-per-device", "--device-memory", "--layers",
        "--width", "--json", "--data", "--model", "--plan"}) {
    EXPECT_THAT(help.out, ContainsRegex(std::string("  ") + flag + "[ ,]")) << flag;
  }
}

TEST(Help, OfSimulateListsTheSchedules) {
  const Finished help = RunStagecoach({"simulate", "--help"});
  for (const char* name : {"gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v",
                           "v-half", "v-min", "dualpipe-v", "auto"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + name + " ")) << name;
  }
  EXPECT_THAT(help.out, HasSubstr("\n  --lowered               Save it with sends"));
  for (const std::string& line : help.OutLines()) EXPECT_THAT(line, SizeIs(Le(100)));
}

TEST(Help, OfPlanAsksForOneGpuOnly) {
  const Finished help = RunStagecoach({"plan", "--help"});
  EXPECT_THAT(help.out, AllOf(HasSubstr("cuda (needs one GPU), or auto: cuda if there is one"),
                              HasSubstr("the first must exist here")));
  for (const std::string& line : help.OutLines()) EXPECT_THAT(line, SizeIs(Le(100)));
}

TEST(Help, OfPredictSaysWhatTheCheckpointDecides) {
  const Finished help = RunStagecoach({"predict", "--help"});
  EXPECT_THAT(help.out, AllOf(HasSubstr("[an equal share]"), HasSubstr("[the run's]"),
                              HasSubstr("[the run's test set]")));
  for (const std::string& line : help.OutLines()) EXPECT_THAT(line, SizeIs(Le(100)));
}

TEST(Help, ListsTheCommands) {
  const Finished help = RunStagecoach({"--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.out,
              AllOf(HasSubstr("  train "), HasSubstr("  predict "), HasSubstr("  generate "),
                    HasSubstr("  prepare "), HasSubstr("  plan "), HasSubstr("  profile "),
                    HasSubstr("  simulate "), HasSubstr("  trace "), HasSubstr("  replay "),
                    HasSubstr("  devices ")));
  EXPECT_THAT(help.err, IsEmpty());
}

TEST(Help, IsThatOfACommandOrOfTheProgram) {
  EXPECT_EQ(RunStagecoach({"help"}).out, RunStagecoach({"--help"}).out);
  EXPECT_EQ(RunStagecoach({"help", "trace", "diff"}).out,
            RunStagecoach({"trace", "diff", "--help"}).out);
  const Finished unknown = RunStagecoach({"help", "trian"});
  EXPECT_EQ(unknown.exit_status, kExitUsage);
  EXPECT_EQ(unknown.err,
            "stagecoach help: there is no command \"trian\"; did you mean train? (see stagecoach "
            "help)\n");
  EXPECT_EQ(RunStagecoach({"help", "train", "--man"}).exit_status, kExitUsage);
}

TEST(ManualPage, HasEveryCommandAndFlag) {
  const Finished page = RunStagecoach({"help", "--man"});
  EXPECT_EQ(page.exit_status, 0);
  for (const char* text :
       {"\n.SH train\n", "\n.SH trace diff\n", "\n.SS Pipeline\n",
        "\n.TP\n\\fB\\-\\-devices\\fR, \\fB\\-\\-stages\\fR \\fIN\\fR\n", "\n.SH EXIT STATUS\n"}) {
    EXPECT_THAT(page.out, HasSubstr(text));
  }
  for (const std::string& line : page.OutLines()) EXPECT_THAT(line, Not(StartsWith("'")));
}

// Returns what bash completes the last of these words to.
std::string Completed(const std::vector<std::string>& words) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "script";
  std::ofstream(path) << RunStagecoach({"help", "--completion", "bash"}).out
                      << "COMP_WORDS=(stagecoach " << absl::StrJoin(words, " ")
                      << ")\nCOMP_CWORD=" << words.size()
                      << "\n_stagecoach\necho \"${COMPREPLY[*]}\"\n";
  std::FILE* const bash = popen(("bash " + path).c_str(), "r");
  char line[200] = "";
  EXPECT_NE(std::fgets(line, sizeof(line), bash), nullptr);
  EXPECT_EQ(pclose(bash), 0);
  return line;
}

TEST(Completion, KnowsCommandsAndTheirFlagsInBash) {
  EXPECT_EQ(Completed({"tra"}), "train trace\n");
  EXPECT_EQ(Completed({"train", "--micro"}), "--micro-batches\n");
  EXPECT_EQ(Completed({"trace", "m"}), "merge\n");
  EXPECT_EQ(Completed({"trace", "merge", "--o"}), "--output\n");
  EXPECT_EQ(Completed({"trace", "merge", "--epochs"}), "\n");
}

TEST(Completion, DescribesFlagsInZshAndFish) {
  EXPECT_THAT(RunStagecoach({"help", "--completion", "zsh"}).out,
              AllOf(StartsWith("#compdef stagecoach\n"),
                    HasSubstr(" '--stages:Devices to split the model over [4]'")));
  EXPECT_THAT(RunStagecoach({"help", "--completion", "fish"}).out,
              HasSubstr("complete -c stagecoach -n '__fish_seen_subcommand_from train' -l stages "
                        "-r -d 'Devices to split"));
}

// The spellings of the previous release still work on the command line.
TEST(EarlierFlags, AreWhatTheyAreCalledNow) {
  const auto train = [](const Arguments& flags) {
    const Finished run = RunStagecoach(Joined({"train", "--data", "synthetic:96x4x2", "--layers",
                                               "2", "--width", "4", "--stages", "1", "--json"},
                                              flags));
    EXPECT_EQ(run.exit_status, 0) << run.err;
    return nlohmann::json::parse(run.OutLines().back())["parameters_hash"];
  };
  EXPECT_EQ(train({"--batch=32", "--microbatches", "2", "--rows", "64", "--deadline", "60"}),
            train({"--global-batch-size=32", "--micro-batches", "2", "--train-samples", "64",
                   "--timeout", "60"}));
  const Finished wrong = RunStagecoach({"train", "--rows", "no"});
  EXPECT_EQ(wrong.exit_status, kStatusUsage);
  ExpectOneLine(wrong.err, HasSubstr("--train-samples: "));
  EXPECT_EQ(RunStagecoach({"profile", "--rows", "4", "--analytic"}).exit_status, 0);
}

TEST(RepeatedFlags, TellAPersonWhichValueCounts) {
  Child child({"simulate", "--schedule", "gpipe", "--devices", "2", "--micro-batches", "8",
               "--schedule", "1f1b", "--devices=3", "--micro-batches", "8"},
              Child::Output::kTerminal);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.out, HasSubstr("1f1b: 3 devices"));
  // They are named in the order of the help.
  EXPECT_EQ(run.err,
            "stagecoach: --schedule is given 2 times: the last counts, 1f1b\n"
            "stagecoach: --devices is given 2 times: the last counts, 3\n");
}

TEST(Version, IsPrinted) {
  const Finished version = RunStagecoach({"--version"});
  EXPECT_EQ(version.exit_status, 0);
  EXPECT_EQ(version.out, RunStagecoach({"-V"}).out);
  EXPECT_THAT(version.out, MatchesRegex("stagecoach [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Devices, PrintsOneJsonObject) {
  const Finished devices = RunStagecoach({"devices", "--json"});
  EXPECT_EQ(devices.exit_status, 0);
  ASSERT_THAT(devices.Events(), SizeIs(1));
  const nlohmann::json cpu = devices.Events()[0]["devices"][0];
  EXPECT_EQ(cpu["kind"], "cpu");
  EXPECT_GE(cpu["processors"], 1);
  EXPECT_GE(cpu["memory_bytes"], cpu["available_memory_bytes"]);
}

TEST(Devices, PrintsATable) {
  EXPECT_THAT(RunStagecoach({"devices"}).out, StartsWith("kind  processors "));
}

}  // namespace
}  // namespace stagecoach::tools
