#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

TEST(Help, OfTrainFitsTwoScreens) {
  EXPECT_THAT(RunStagecoach({"train", "--help"}).OutLines(), SizeIs(Le(118)));
  for (const char* command : {"train", "simulate", "plan", "predict"}) {
    const Finished help = RunStagecoach({command, "--help"});
    EXPECT_EQ(help.exit_status, 0);
    EXPECT_THAT(help.OutLines(), Each(SizeIs(Le(100)))) << command;
  }
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

}  // namespace
}  // namespace stagecoach::tools
