#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::TestDirectory;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Finished Simulated(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "simulate");
  return RunStagecoach(arguments);
}

nlohmann::json JsonOf(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const Finished run = Simulated(std::move(arguments));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.Events(), SizeIs(1));
  return run.Events().at(0);
}

std::string ContentsOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Simulate, JsonHasItsFormAndItsTimesAddUp) {
  const nlohmann::json json =
      JsonOf({"--schedule", "zb-v", "--stages", "8", "--micro-batches", "32", "--forward", "18.5",
              "--backward", "18.1", "--weight", "9.3", "--latency", "0.6"});
  EXPECT_EQ(json["schedule"], "zb-v");
  EXPECT_EQ(json["devices"], 8);
  EXPECT_EQ(json["chunks"], 2);
  EXPECT_EQ(json["stages"], 16);
  EXPECT_THAT(json["ranks"][0]["stages"], ElementsAre(0, 15));
  EXPECT_EQ(json["micro_batches"], 32);
  ASSERT_THAT(json["ranks"], SizeIs(8));
  for (const nlohmann::json& rank : json["ranks"]) {
    EXPECT_NEAR(rank["busy_ms"], 32 * (18.5 + 18.1 + 9.3), 1e-6);
    const nlohmann::json& idle = rank["idle_ms"];
    EXPECT_NEAR(rank["busy_ms"].get<double>() + idle["dependency"].get<double>() +
                    idle["imbalance"].get<double>() + idle["communication"].get<double>(),
                json["step_ms"], 1e-6);
    EXPECT_EQ(rank["peak_stash"], 8);
  }
  EXPECT_NEAR(json["bubble_rate"], 1 - 32 * 45.9 / json["span_ms"].get<double>(), 1e-9);
}

TEST(Simulate, FitsATerminal) {
  Child child({"simulate", "--stages", "4", "--micro-batches", "16"}, Child::Output::kTerminal);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.out, HasSubstr("\x1b["));  // colors
  const Finished plain = Simulated({"--stages", "4", "--micro-batches", "16"});
  EXPECT_THAT(plain.out, Not(HasSubstr("\x1b[")));
  for (const std::string& line : plain.OutLines()) EXPECT_LE(base::Width(line), 100U) << line;
}

std::vector<std::string> SmallTraining(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "train",   "--data", "synthetic:96x16x4",   "--layers", "8",
      "--width", "16",     "--global-batch-size", "32",       "--epochs",
      "1",       "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Trace, OfARunIsComparedWithItsSimulation) {
  const std::string directory = TestDirectory();
  const std::string measured = absl::StrCat(directory, "/", "measured.json");
  const std::string simulated = absl::StrCat(directory, "/", "simulated.json");
  const Finished run =
      RunStagecoach(SmallTraining({"--stages", "2", "--schedule", "zb-h1", "--trace", measured,
                                   "--simulated-trace", simulated}));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const Finished diff = RunStagecoach({"trace", "diff", simulated, measured, "--json"});
  ASSERT_EQ(diff.exit_status, 0) << diff.err;
  const nlohmann::json json = diff.Events().at(0);
  EXPECT_GT(json["measured_step_ns"], 0);
  EXPECT_GT(json["simulated_step_ns"], 0);
  const std::string page = absl::StrCat(directory, "/", "page.html");
  const Finished swapped = RunStagecoach({"trace", "diff", measured, simulated, "--html", page});
  EXPECT_THAT(swapped.err, IsEmpty());
  EXPECT_EQ(swapped.out, RunStagecoach({"trace", "diff", simulated, measured}).out);
  EXPECT_THAT(swapped.out, HasSubstr("cause"));
  const std::string html = ContentsOf(page);
  const size_t above = html.find(absl::StrCat("\"name\":\"simulated: ", simulated, "\""));
  const size_t below = html.find(absl::StrCat("\"name\":\"measured: ", measured, "\""));
  EXPECT_LT(above, below);
  EXPECT_NE(below, std::string::npos);
  EXPECT_THAT(html, HasSubstr("<td class=\"left\">sum</td>"));
  const std::string drawn = RunStagecoach({"trace", "show", measured, "--html", page}).out;
  EXPECT_THAT(drawn, AllOf(HasSubstr("zb-h1, measured"), ContainsRegex("rank +F +B +W +busy"),
                           ContainsRegex("messages +executor +tail")));  // as wide as the times
  // The rank's forward time is the same as on the terminal.
  const std::string forward = std::vector<std::string>(
      absl::StrSplit(drawn.substr(drawn.rfind("\n1 ")), ' ', absl::SkipEmpty()))[1];
  EXPECT_THAT(ContentsOf(page),
              AllOf(HasSubstr("<td class=\"left\">1</td><td>" + forward + "</td>"),
                    HasSubstr(R"("stash":{"inBytes":true,)")));
  const nlohmann::json shown = RunStagecoach({"trace", "show", measured, "--json"}).Events().at(0);
  EXPECT_EQ(shown["schedule"], "zb-h1");
  EXPECT_EQ(shown["source"], "measured");
  EXPECT_EQ(shown["step_ns"], json["measured_step_ns"]);
  ASSERT_THAT(shown["ranks"], SizeIs(2));
  EXPECT_THAT(shown["ranks"][1]["stages"], ElementsAre(1));
  EXPECT_GT(shown["ranks"][1]["busy_ns"], 0);
}

}  // namespace
}  // namespace stagecoach::tools
