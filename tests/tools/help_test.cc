#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(Help, OfTrainFitsTwoScreens) {
  const Finished help = RunStagecoach({"train", "--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.OutLines(), SizeIs(Le(80)));
  for (const std::string& line : help.OutLines()) EXPECT_THAT(line, SizeIs(Le(100)));
}

TEST(Help, OfTrainNamesTheFlagsThatEverythingLaterKeeps) {
  const Finished help = RunStagecoach({"train", "--help"});
  for (const char* flag : {"--stages", "--schedule", "--microbatches", "--batch", "--epochs",
                           "--rows", "--seed", "--threads-per-device", "--device-memory",
                           "--layers", "--width", "--json", "--data", "--model", "--plan"}) {
    EXPECT_THAT(help.out, ContainsRegex(std::string("  ") + flag + "[ ,]")) << flag;
  }
}

TEST(Help, OfSimulateListsTheSchedules) {
  const Finished help = RunStagecoach({"simulate", "--help"});
  for (const char* name : {"gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v",
                           "v-half", "v-min", "dualpipe-v", "auto"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + name + " ")) << name;
  }
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
  EXPECT_THAT(help.out, AllOf(HasSubstr("[an equal share of them]"), HasSubstr("[the run's]"),
                              HasSubstr("[what the run was tested with]")));
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

TEST(Version, IsPrinted) {
  const Finished version = RunStagecoach({"--version"});
  EXPECT_EQ(version.exit_status, 0);
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
