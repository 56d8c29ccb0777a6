// `generate`, as a user sees it.
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tools/stagecoach/generate/prompt_positions.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;

// A run of a small GPT on bytes of text.
class GenerateCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(Path("a.txt"));
    for (int i = 0; i < 400; ++i) text << "abcdefgh ";
    text.close();
    const Finished run = RunStagecoach(
        {"train", "--model", "gpt2:blocks=1,width=32,heads=2,context=24,vocabulary=256", "--data",
         Path("a.txt"), "--stages", "2", "--global-batch-size", "4", "--micro-batches", "2",
         "--epochs", "2", "--learning-rate", "1e-2", "--checkpoint", Path("run"), "--json"});
    ASSERT_EQ(run.exit_status, 0) << run.err;
  }

  std::string Path(const std::string& name) const { return folder_.path() / name; }
  Finished Generate(const Arguments& more) const {
    return RunStagecoach(
        Joined({"generate", "--checkpoint", Path("run"), "--threads-per-device", "1"}, more));
  }
  const TestFolder folder_;
};

TEST_F(GenerateCommandTest, ComputesInBfloat16WhereTheProcessorDoes) {
  if (!kernels::CheckBfloat16OnCpu().ok()) GTEST_SKIP() << "this processor has no bfloat16";
  const Finished run = Generate(
      {"--prompt", "abcdefgh abc", "--temperature", "0", "--tokens", "6", "--precision", "bf16"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_EQ(run.out, "abcdefgh abcdefgh \n");
}

// Texts that end at other times, at a stop, at a full context and after some tokens: what one gives
// is held back until those before it have ended.
TEST_F(GenerateCommandTest, GivesTheEventsOfSeveralPromptsInTheirOrder) {
  std::ofstream file(Path("lines"));
  const std::vector<std::string> prompts = {"abcdefgh abcdefgh ", "abcdefg",
                                            "defgh abcdefgh abcdef", "h", "abcdefgh abcde"};
  for (const std::string& prompt : prompts) file << prompt << "\n";
  file.close();
  const auto events = [&](const Arguments& more) {
    const Finished run = Generate(Joined({"--prompts", Path("lines"), "--tokens", "9",
                                          "--temperature", "0", "--stop", "h a", "--json"},
                                         more));
    EXPECT_EQ(run.exit_status, 0) << run.err;
    std::vector<nlohmann::json> all = run.Events();
    for (nlohmann::json& event : all) {
      for (const nlohmann::json& device : event["devices"]) {
        EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
      }
      event.erase("devices");
      event.erase("tokens_per_second");
      event.erase("prompt_tokens_per_second");
      event.erase("first_layers");
    }
    return all;
  };
  const std::vector<nlohmann::json> expected = events({"--batch-prompts", "1"});
  std::vector<std::string> ends;
  for (const nlohmann::json& event : expected) {
    if (event["event"] == "end") ends.push_back(event["ended_by"]);
  }
  EXPECT_THAT(ends, ::testing::ElementsAre("context", "stop", "stop", "tokens", "stop"));
  EXPECT_EQ(events({}), expected);
  EXPECT_EQ(events({"--batch-prompts", "2", "--stages", "3"}), expected);
}

TEST_F(GenerateCommandTest, EndsBetweenTwoTexts) {
  std::ofstream file(Path("lines"));
  for (int i = 0; i < 20'000; ++i) file << "abcdefgh\n";
  file.close();
  Child child({"generate", "--checkpoint", Path("run"), "--threads-per-device", "1", "--prompts",
               Path("lines"), "--tokens", "1", "--json"});
  ASSERT_TRUE(child.WaitForOutput("\"event\":\"end\""));
  child.Signal(SIGINT);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, kStopped);
  const std::vector<nlohmann::json> events = run.Events();
  EXPECT_LT(events.size(), 3 * 20'000U);
  EXPECT_EQ(events.back()["event"], "end");
}

struct Positions {
  engine::DeviceKind device;
  std::vector<int> prompts;
  int64_t expected;
};

TEST(PromptPositions, AreThoseOfTheLeastTime) {
  using enum engine::DeviceKind;
  for (const auto& [device, prompts, expected] : std::vector<Positions>{
           {kCpu, {1}, 1},
           {kCpu, {2}, 1},
           {kCpu, {122}, 121},
           {kCpu, {129}, 128},
           {kCpu, {130}, 65},  // two equal parts
           {kCpu, {401}, 100},
           {kCpu, {11, 11, 11}, 10},
           {kCpu, {121, 5, 5, 5, 5}, 20},  // not 120 for each of the short ones
           {kCpu, {1, 1, 41}, 40},
           {kCuda, {63, 2}, 1},
           {kCuda, {2, 64, 3}, 8},
       }) {
    std::vector<std::vector<int32_t>> ids;
    for (const int prompt : prompts) ids.emplace_back(prompt);
    EXPECT_EQ(PositionsAtATime(device, ids), expected) << prompts.front();
  }
}

}  // namespace
}  // namespace stagecoach::tools
