// The output of a training run.

#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/system/file.h"
#include "base/text/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

Arguments PrintingRun(const Arguments& more) {
  return Joined({"train", "--data", "synthetic:400x16x4", "--layers", "6", "--width", "16",
                 "--global-batch-size", "40", "--micro-batches", "4", "--epochs", "3"},
                more);
}

TEST(Json, EndTellsWhatEachDeviceHeld) {
  const Finished run =
      RunStagecoach(PrintingRun({"--json", "--stages", "3", "--schedule", "1f1b"}));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.err, IsEmpty());
  const nlohmann::json end = run.Events().back();
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

TEST(Terminal, RedrawsOneLineThatNeverWraps) {
  Child child(PrintingRun({}), Child::Output::kTerminal);
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
