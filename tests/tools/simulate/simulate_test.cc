#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::TestDirectory;
using engine::WriteTestFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

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

// Returns the first row of the published tables.
std::vector<std::string> PublishedTimes(const std::string& schedule) {
  return {"--schedule", schedule,    "--stages",  "8",          "--micro-batches",
          "24",         "--forward", "18.522",    "--backward", "18.086",
          "--weight",   "9.337",     "--latency", "0.601"};
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

TEST(Simulate, GivesThePublishedBubble) {
  EXPECT_NEAR(JsonOf(PublishedTimes("zb-h1"))["bubble_rate"], .1585, 5e-5);
}

TEST(Simulate, AutoReachesThePublishedBubbleWithinTheLimit) {
  std::vector<std::string> arguments = PublishedTimes("auto");
  arguments.insert(arguments.end(),
                   {"--chunks", "1", "--stash-limit", "16", "--objective", "span"});
  const nlohmann::json json = JsonOf(arguments);
  EXPECT_LT(json["bubble_rate"], .04335);
  for (const nlohmann::json& rank : json["ranks"]) EXPECT_LE(rank["peak_stash"], 16);
}

TEST(Simulate, AutoMinimizesTheStepUnlessAskedForTheSpan) {
  const auto simulated = [](std::vector<std::string> choice) {
    choice.insert(choice.end(), {"--stages", "4", "--micro-batches", "12", "--latency", "0.5"});
    return JsonOf(std::move(choice));
  };
  const nlohmann::json by_step = simulated({"--schedule", "auto"});
  const nlohmann::json by_span = simulated({"--schedule", "auto", "--objective", "span"});
  EXPECT_LT(by_step["step_ms"], by_span["step_ms"]);
  EXPECT_LT(by_span["span_ms"], by_step["span_ms"]);
  EXPECT_EQ(simulated({"--schedule", "auto", "--objective", "step"}), by_step);
  for (const char* name : {"1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "v-half", "interleaved"}) {
    const nlohmann::json named = simulated({"--schedule", name});
    EXPECT_LE(by_step["step_ms"], named["step_ms"]) << name;
    EXPECT_LE(by_span["span_ms"], named["span_ms"]) << name;
  }
}

TEST(Simulate, ChunksShareTheTimesOfTheirDevice) {
  const nlohmann::json json =
      JsonOf({"--schedule", "interleaved", "--chunks", "3", "--stages", "2", "--micro-batches", "4",
              "--forward", "3", "--backward", "6", "--weight", "9"});
  EXPECT_EQ(json["chunks"], 3);
  EXPECT_DOUBLE_EQ(json["ranks"][0]["busy_ms"], 4 * 18.0);
  EXPECT_DOUBLE_EQ(json["span_ms"], 4 * 18.0 + 18.0 / 3);
}

TEST(Simulate, TimesFileGivesEachStageItsOwn) {
  const std::string directory = TestDirectory();
  const std::string times = WriteTestFile(
      directory, "times.json",
      R"({"stages": [{"forward_ms": 1, "backward_ms": 1, "weight_ms": 1, "output_bytes": 1000,
                      "stash_bytes": 5000},
                     {"forward_ms": 3, "backward_ms": 2, "weight_ms": 2, "step_ms": 4}],
          "latency_ms": 0.25, "bytes_per_second": 1000000})");
  const std::string page = absl::StrCat(directory, "/", "page.html");
  const nlohmann::json json =
      JsonOf({"--stages", "2", "--micro-batches", "1", "--times", times, "--html", page});
  // The step is F0, a message of 0.25 + 1 ms, F1, BW1, a message, BW0; meanwhile STEP1.
  EXPECT_DOUBLE_EQ(json["step_ms"], 1 + 1.25 + 3 + 4 + 4);
  EXPECT_DOUBLE_EQ(json["ranks"][0]["busy_ms"], 3);
  EXPECT_DOUBLE_EQ(json["ranks"][1]["busy_ms"], 11);
  EXPECT_GE(json["ranks"][0]["peak_stash_bytes"], 5000);
  EXPECT_GE(json["ranks"][0]["peak_bytes"], json["ranks"][0]["peak_stash_bytes"]);
  EXPECT_THAT(ContentsOf(page),
              HasSubstr(absl::StrCat(R"("stash":{"inBytes":true,"ranks":[{"peak":)",
                                     json["ranks"][0]["peak_stash_bytes"].get<int64_t>(), ",")));
}

TEST(Simulate, TextHasTimelineTableAndTotals) {
  const Finished run = Simulated({"--stages", "2", "--micro-batches", "2"});
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.out, AllOf(StartsWith("1f1b: 2 devices, 2 micro-batches\n"),
                             HasSubstr("rank 0 |F"), HasSubstr("peak stash"),
                             HasSubstr("step 9.000 ms, of which ranks are idle 33.33 % on average\n"
                                       "longest span of a rank 9.000 ms, bubble 33.33 % of it")));
}

// Both are printed: the idle time of one step, and that of consecutive steps.
TEST(Simulate, TellsIdleTimeOfTheStepFromTheBubbleOfItsSpans) {
  const Finished one = Simulated({"--schedule", "zb-v", "--stages", "4", "--micro-batches", "8"});
  EXPECT_THAT(one.out, AllOf(HasSubstr("step 25.500 ms, of which ranks are idle 5.88 %"),
                             HasSubstr("span of a rank 24.000 ms, bubble 0.00 % of it")));
  const Finished two =
      Simulated({"--schedule", "zb-v,1f1b", "--stages", "4", "--micro-batches", "8"});
  EXPECT_THAT(two.out, AllOf(HasSubstr("step     idle"), HasSubstr("25.500 ms   5.88 %")));
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

TEST(Simulate, ASavedScheduleIsTheSameSchedule) {
  const std::string directory = TestDirectory();
  for (const char* schedule : {"1f1b", "interleaved", "zb-v", "dualpipe-v"}) {
    const std::vector<std::string> shape = {"--stages", "2",         "--micro-batches",
                                            "4",        "--latency", "0.125"};
    nlohmann::json expected;
    for (const char* name : {"s.csv", "s.json"}) {
      for (const bool lowered : {false, true}) {
        std::vector<std::string> save = {"--schedule", schedule, "--save",
                                         absl::StrCat(directory, "/", name)};
        save.insert(save.end(), shape.begin(), shape.end());
        if (lowered) save.emplace_back("--lowered");
        expected = JsonOf(save);
        nlohmann::json read =
            JsonOf({"--schedule", absl::StrCat(directory, "/", name), "--latency", "0.125"});
        read["schedule"] = schedule;  // a CSV has no name
        EXPECT_EQ(read, expected) << schedule << " " << name << " " << lowered;
      }
    }
  }
}

// PyTorch divides gradients by the number of micro-batches when it sums them.
TEST(Simulate, ALoweredScheduleIsWhatPlanExportsForPyTorch) {
  const std::string directory = TestDirectory();
  const std::string saved = absl::StrCat(directory, "/saved.csv");
  const std::string planned = absl::StrCat(directory, "/planned.csv");
  const std::string order = absl::StrCat(directory, "/order.csv");
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-v", "dualpipe-v"}) {
    const Finished plan = RunStagecoach(
        {"plan", "--data", "synthetic:64x16x4", "--layers", "16", "--width", "16",
         "--global-batch-size", "8", "--micro-batches", "8", "--devices", "2", "--schedule",
         schedule, "--export", absl::StrCat("torch-lowered:", planned, ",torch-schedule:", order),
         "--json"});
    ASSERT_EQ(plan.exit_status, 0) << plan.err;
    ASSERT_EQ(Simulated({"--schedule", order, "--save", saved, "--lowered"}).exit_status, 0);
    EXPECT_EQ(ContentsOf(saved), ContentsOf(planned)) << schedule;
    EXPECT_THAT(ContentsOf(saved), HasSubstr("REDUCE_GRAD"));
  }
}

TEST(Simulate, WritesPagesAndPicturesThatNeedNothingFromElsewhere) {
  const std::string directory = TestDirectory();
  const std::string html = absl::StrCat(directory, "/", "page.html");
  const std::string svg = absl::StrCat(directory, "/", "picture.svg");
  EXPECT_EQ(Simulated({"--schedule", "zb-h2", "--html", html, "--svg", svg}).exit_status, 0);
  EXPECT_THAT(ContentsOf(html), AllOf(StartsWith("<!doctype html>"), HasSubstr("zb-h2: 4 devices"),
                                      HasSubstr(R"("stash":{"inBytes":false,)"),
                                      Not(HasSubstr("src=")), Not(HasSubstr("href="))));
  EXPECT_THAT(ContentsOf(svg),
              AllOf(HasSubstr("<svg"), HasSubstr("zb-h2: 4 devices"), Not(HasSubstr("<script"))));
}

struct BadInput {
  std::vector<std::string> arguments;
  int exit_status;
  std::string message;
};

TEST(Simulate, BadInputGivesOneLineAndItsExitStatus) {
  const std::string directory = TestDirectory();
  const auto csv = [&](const std::string& name, const std::string& text) {
    return WriteTestFile(directory, name, text);
  };
  const std::string unknown = csv("unknown.csv", "0F0,0B0\n1F0,1X0\n");
  const std::string missing = csv("missing.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n");
  const std::string times = csv("times.json", R"({"stages": [{"forward_ms": 1}]})");
  const std::vector<BadInput> cases = {
      {{"--schedule", "zb-h3"}, 2, "did you mean zb-h1"},
      {{"--schedule", "interleaved", "--stages", "4", "--micro-batches", "6"},
       78,
       "interleaved: needs micro-batches divisible by ranks: 6 and 4"},
      {{"--schedule", "1f1b", "--chunks", "2"}, 78, "1f1b: has 1 chunk per rank, not 2"},
      {{"--schedule", "nowhere.csv"}, 65, "cannot open nowhere.csv"},
      {{"--schedule", unknown}, 65, "2:5: \"1X0\" is not an action"},
      {{"--schedule", missing}, 65, "2:12 (end of the row): stage 1 F micro-batch 1"},
      {{"--schedule", "auto", "--stash-limit", "0.5"}, 78, "rank 0 needs a stash of 1"},
      {{"--times", times}, 65, "times.json:1:13: $.stages[0]: the key \"backward_ms\" is missing"},
      {{"--times", times, "--forward", "2"}, 2, "--times excludes --forward"},
      {{"--objective", "step"}, 2, "--objective is what --schedule auto minimizes"},
      {{"--schedule", "auto", "--objective", "bottleneck"}, 2, "--objective"},
      {{"--forward", "nan"}, 2, "--forward"},
      {{"--stages", "0"}, 2, "--devices: "},
      {{"--save", "schedule.txt"}, 2, "ends in .csv or .json"},
      {{"--lowered"}, 2, "--save"},
      {{"--schedule", "1f1b", "--stages", "4", "--stash-limit", "1"}, 78, "its limit is 1"},
      {{"--schedule", "auto", "--stages", "65536", "--chunks", "65536"}, 78, "too many to search"},
      {{"--stages", "100000", "--micro-batches", "1"}, 78, "too many"},
      {{"--schedule", "auto", "--stages", "4", "--micro-batches", "10000", "--forward", "1e9",
        "--chunks", "1"},
       78,
       "more than a century"},
      {{"--html", absl::StrCat(directory, "/", "no/such/folder.html")},
       kStatusCannotWrite,
       "folder.html"},
  };
  for (const BadInput& bad : cases) {
    const Finished run = Simulated(bad.arguments);
    EXPECT_EQ(run.exit_status, bad.exit_status) << run.err;
    EXPECT_THAT(run.err, HasSubstr(bad.message));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST(Simulate, ADeadlockIsDrawnWithRowsAndColumns) {
  const std::string directory = TestDirectory();
  const std::string path =
      WriteTestFile(directory, "dead.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  const Finished run = Simulated({"--schedule", path});
  EXPECT_EQ(run.exit_status, 65);
  EXPECT_THAT(run.err, AllOf(HasSubstr("1:5 (0B0): stage 0 BW micro-batch 0: deadlock"),
                             HasSubstr("2:5 (1F1): stage 1 F micro-batch 1 waits for "
                                       "stage 0 SEND_F micro-batch 1 at 1:9 (0F1)")));
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
  EXPECT_THAT(drawn, AllOf(HasSubstr("zb-h1, measured"), HasSubstr("rank      "),
                           HasSubstr("messages  executor")));
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

TEST(Trace, OfTheSameKindKeepTheirPlacesAndThatIsSaid) {
  const std::string directory = TestDirectory();
  const std::string fast = absl::StrCat(directory, "/", "fast.json");
  const std::string slow = absl::StrCat(directory, "/", "slow.json");
  ASSERT_EQ(Simulated({"--trace", fast}).exit_status, 0);
  ASSERT_EQ(Simulated({"--forward", "2", "--trace", slow}).exit_status, 0);
  const Finished diff = RunStagecoach({"trace", "diff", fast, slow, "--json"});
  EXPECT_GT(diff.Events().at(0)["difference_ns"], 0);
  ExpectOneLine(diff.err,
                AllOf(HasSubstr("both traces are simulated"),
                      HasSubstr(absl::StrCat(fast, " takes the place of the simulated"))));
}

// A schedule, its trace and its times each pass through a pipe.
TEST(Streams, AreReadAndWrittenInPlaceOfFiles) {
  const std::string file = absl::StrCat(TestDirectory(), "/", "schedule.json");
  const Finished saved = Simulated({"--schedule", "zb-v", "--stages", "2", "--save", file});
  const Finished written = Simulated({"--schedule", "zb-v", "--stages", "2", "--save", "-"});
  EXPECT_EQ(written.exit_status, 0) << written.err;
  EXPECT_EQ(written.out, ContentsOf(file));
  EXPECT_EQ(written.err, saved.out);
  for (const std::string& schedule : {written.out, std::string("0F0,0B0\n1F0,1B0\n")}) {
    const Finished read = RunStagecoach({"simulate", "--schedule", "-", "--json"}, schedule);
    EXPECT_EQ(read.exit_status, 0) << read.err;
    EXPECT_THAT(read.Events().at(0)["ranks"], SizeIs(2));
  }
  const Finished trace = Simulated({"--stages", "2", "--micro-batches", "2", "--trace", "-"});
  EXPECT_EQ(RunStagecoach({"trace", "show", "-"}, trace.out).exit_status, 0);
  // Standard input is read once and kept, so both are the same.
  EXPECT_EQ(RunStagecoach({"trace", "diff", "-", "-", "--json"}, trace.out)
                .Events()
                .at(0)["difference_ns"],
            0);
  const Finished bad = RunStagecoach({"simulate", "--times", "-"}, "{\n \"stages\": 1}");
  EXPECT_EQ(bad.exit_status, 65);
  ExpectOneLine(bad.err, HasSubstr("standard input:2:2: $.stages: expected an array"));
  const Finished twice = Simulated({"--save", "-", "--trace", "-"});
  EXPECT_EQ(twice.exit_status, 2);
  ExpectOneLine(twice.err, HasSubstr("standard output is another file already"));
}

TEST(Trace, OfAnotherScheduleIsRefused) {
  const std::string directory = TestDirectory();
  const std::string one = absl::StrCat(directory, "/", "one.json");
  const std::string two = absl::StrCat(directory, "/", "two.json");
  ASSERT_EQ(Simulated({"--schedule", "1f1b", "--trace", one}).exit_status, 0);
  ASSERT_EQ(Simulated({"--schedule", "gpipe", "--trace", two}).exit_status, 0);
  const Finished diff = RunStagecoach({"trace", "diff", one, two});
  EXPECT_EQ(diff.exit_status, 65);
  ExpectOneLine(diff.err, HasSubstr("rank 0"));
}

TEST(Trace, BadUsageAndBadFilesSaySo) {
  EXPECT_EQ(RunStagecoach({"trace"}).exit_status, 2);
  EXPECT_EQ(RunStagecoach({"trace", "diff", "one.json"}).exit_status, 2);
  EXPECT_EQ(RunStagecoach({"trace", "show", "nowhere.json"}).exit_status, 65);
  EXPECT_EQ(RunStagecoach({"trace", "shwo", "nowhere.json"}).exit_status, 2);
}

}  // namespace
}  // namespace stagecoach::tools
