// `train` without --checkpoint, which saves the run in a folder of its own.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

class OwnFolder : public ::testing::Test {
 protected:
  Finished Run(const Arguments& arguments) const {
    return Child(arguments, Child::Output::kPipe, std::nullopt, folder_.path()).Wait();
  }
  Finished Train(const Arguments& more = {}) const {
    return Run(Joined({"train", "--data", "synthetic:64x8x2", "--layers", "4", "--width", "8",
                       "--global-batch-size", "16", "--devices", "2", "--epochs", "3"},
                      more));
  }
  // Does what the last line says.
  Finished Follow(const Finished& run) const {
    Arguments words = absl::StrSplit(run.OutLines().back(), ' ');
    words.erase(words.begin(), words.begin() + 2);  // "predict: stagecoach"
    return Run(words);
  }
  static std::vector<std::string> NamesIn(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::vector<std::string> Runs() const { return NamesIn(folder_.path() / "runs"); }

  const TestFolder folder_;
  const ScopedVariable unset_{"STAGECOACH_RUNS", ""};
};

TEST_F(OwnFolder, HasOneCheckpointThatTheLastLineSaysHowToUse) {
  const Finished run = Train();
  ASSERT_EQ(run.exit_status, 0) << run.err;
  ASSERT_THAT(Runs(), ElementsAre(MatchesRegex("20[0-9]+-[0-9]+-[0-9]+-default")));
  EXPECT_THAT(NamesIn(folder_.path() / "runs" / Runs()[0]),
              ElementsAre("metrics.jsonl", "run.html", "step-00000012"));
  EXPECT_THAT(run.out, HasSubstr("saved as runs/" + Runs()[0] + "/step-00000012 ("));
  const Finished prediction = Follow(run);
  EXPECT_EQ(prediction.exit_status, 0) << prediction.err;
  EXPECT_THAT(prediction.out, HasSubstr("accuracy"));
}

TEST_F(OwnFolder, IsNoOtherRuns) {
  EXPECT_EQ(Train().exit_status, 0);
  const Finished second = Train();
  EXPECT_EQ(second.exit_status, 0) << second.err;
  ASSERT_THAT(Runs(), SizeIs(2));
  EXPECT_EQ(Runs()[1], Runs()[0] + "-2");
  EXPECT_THAT(second.OutLines().back(), HasSubstr(Runs()[1]));
}

TEST_F(OwnFolder, IsOneForTheProcessesOfALaunch) {
  const Finished run =
      Run({"launch", "--processes", "2", "--", "train", "--data", "synthetic:64x8x2", "--layers",
           "4", "--width", "8", "--global-batch-size", "16", "--devices", "2"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  ASSERT_THAT(Runs(), SizeIs(1));
  EXPECT_EQ(Follow(run).exit_status, 0);
}

TEST_F(OwnFolder, IsSavedInBeforeTheEndIfItIsAsked) {
  Child child(
      {"train", "--data", "synthetic:400000x16x4", "--layers", "5", "--width", "16", "--devices",
       "2", "--global-batch-size", "40", "--steps", "1000000", "--log-every", "20"},
      Child::Output::kPipe, std::nullopt, folder_.path());
  ASSERT_TRUE(child.WaitForOutput("step 20:"));
  ASSERT_THAT(Runs(), SizeIs(1));
  const auto is_saved = [&] {
    const std::vector<std::string> names = NamesIn(folder_.path() / "runs" / Runs()[0]);
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return name.starts_with("step-"); });
  };
  EXPECT_FALSE(is_saved());
  child.Signal(SIGUSR1);
  for (int step = 40; !is_saved(); step += 20) {
    ASSERT_TRUE(child.WaitForOutput(absl::StrCat("step ", base::FormatCount(step), ":")));
  }
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait().exit_status, kTerminated);
}

TEST_F(OwnFolder, OfAModelOfTextIsGeneratedWith) {
  std::ofstream(folder_.path() / "words.txt") << std::string(4000, 'a') + std::string(4000, 'b');
  const Finished run = Run({"train", "--data", "words.txt", "--model",
                            "gpt2:blocks=1,width=8,heads=1,vocabulary=256", "--context", "16",
                            "--devices", "1", "--global-batch-size", "32", "--steps", "2"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.OutLines().back(),
              AllOf(HasSubstr("generate: stagecoach generate --checkpoint runs/"),
                    HasSubstr("-gpt2-blocks-1-width-8"), HasSubstr(" --prompt \"...\"")));
  EXPECT_EQ(Follow(run).exit_status, 0);
}

TEST_F(OwnFolder, IsNotMadeForWhatCannotBeTrained) {
  EXPECT_NE(Train({"--devices", "9"}).exit_status, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "runs"));
}

}  // namespace
}  // namespace stagecoach::tools
