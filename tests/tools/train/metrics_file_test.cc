// `train --metrics` and `--log-every`.
#include "tools/stagecoach/train/metrics_file.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Metrics : public ::testing::Test {
 protected:
  std::string Text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  std::vector<nlohmann::json> Lines() const {
    std::vector<nlohmann::json> lines;
    for (const absl::string_view line : absl::StrSplit(Text(), '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  // Returns the events as "step 3", "epoch 5".
  std::vector<std::string> Events() const {
    std::vector<std::string> events;
    for (const nlohmann::json& line : Lines()) {
      events.push_back(absl::StrCat(line["event"].get<std::string>(), " ", line["step"].dump()));
    }
    return events;
  }

  const TestFolder folder_;
  const std::string path_ = (folder_.path() / "metrics.jsonl").string();
};

// Writes steps 1 to 4, with an evaluation after step 2 and the end of an epoch after step 4.
void Write(RunLog& file) {
  for (int step = 1; step <= 4; ++step) {
    file.Step({.epoch = 1, .run_step = step, .step_result = {.loss = 0.5 * step}});
    if (step == 2) file.Evaluation({.step = step, .test_loss = 2.5});
    if (step == 4) file.Epoch({.step = step, .test_loss = 1.5});
  }
}

TEST_F(Metrics, HaveALineForEveryStepAndEvaluation) {
  ASSERT_OK_AND_ASSIGN(const auto file, MetricsFile::Open(path_, {}, std::nullopt));
  Write(*file);
  EXPECT_THAT(Events(),
              ElementsAre("step 1", "step 2", "evaluation 2", "step 3", "step 4", "epoch 4"));
  EXPECT_EQ(Lines()[3]["loss"], 1.5);
  EXPECT_EQ(Lines()[5]["test_loss"], 1.5);
  ASSERT_OK_AND_ASSIGN(const auto anew, MetricsFile::Open(path_, {.every_steps = 3}, std::nullopt));
  Write(*anew);
  EXPECT_THAT(Events(), ElementsAre("evaluation 2", "step 3", "epoch 4"));
}

TEST_F(Metrics, OfARunThatGoesOnLoseWhatItDoesAgain) {
  const auto left = [&](const RunLog::Start& start) {
    Write(**MetricsFile::Open(path_, {}, std::nullopt));
    std::ofstream(path_, std::ios::app) << R"({"event":"step","st)";  // it was killed
    EXPECT_OK(MetricsFile::Open(path_, {}, start));
    return Events();
  };
  EXPECT_THAT(left({.step = 3}), ElementsAre("step 1", "step 2", "evaluation 2", "step 3"));
  EXPECT_THAT(left({.step = 2}), ElementsAre("step 1", "step 2"));
  EXPECT_THAT(left({.step = 2, .is_evaluated = true}),
              ElementsAre("step 1", "step 2", "evaluation 2"));
  EXPECT_THAT(left({.step = 4, .is_evaluated = true}), SizeIs(6));
}

TEST_F(Metrics, AreNotWrittenOverAnotherFile) {
  const std::vector<std::string> others = {"a text\n", "{\"step\": 1}\n", "{\"event\": \"step\"}\n",
                                           "\n"};
  for (const std::string& other : others) {
    std::ofstream(path_) << R"({"event":"step","step":1})"
                         << "\n"
                         << other;
    const std::string before = Text();
    EXPECT_THAT(MetricsFile::Open(path_, {}, RunLog::Start{.step = 1}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("metrics.jsonl:2: no event of a run")))
        << other;
    EXPECT_EQ(Text(), before);
  }
}

// Returns the arguments of a run with epochs of five steps.
Arguments Logged(const Arguments& more) {
  return Joined(
      {"train", "--data", "synthetic:200x16x4", "--layers", "5", "--width", "16",
       "--global-batch-size", "40", "--lr-schedule", "constant", "--learning-rate", "0.25"},
      more);
}

// 900 lines for each tenfold of a run, so that those of a long one cost nothing.
TEST(RunLogOptions, RecordFewerStepsOfALongRun) {
  const RunLog::Options all = {.every_steps = 0};
  int64_t recorded = 0;
  for (int64_t step = 1; step <= 100'000; ++step) recorded += all.Records(step) ? 1 : 0;
  EXPECT_EQ(recorded, 1000 + 900 + 900);
  for (const int64_t step : {1, 999, 1000, 1010, 10'000, 10'100}) EXPECT_TRUE(all.Records(step));
  for (const int64_t step : {1001, 1015, 9999, 10'010}) EXPECT_FALSE(all.Records(step));
  EXPECT_TRUE(RunLog::Options{.every_steps = 3}.Records(10'002));
  EXPECT_FALSE(RunLog::Options{.every_steps = 3}.Records(10'003));
}

TEST_F(Metrics, OfAResumedRunAreThoseOfOneThatWasNot) {
  const auto metrics = [&] {
    std::vector<nlohmann::json> lines = Lines();
    for (nlohmann::json& line : lines) {
      for (const char* varying : {"samples_per_second", "evaluation_seconds", "time"}) {
        line.erase(varying);
      }
    }
    return lines;
  };
  const std::string saved = (folder_.path() / "run").string();
  const Arguments options = {"--metrics",          path_, "--epochs",           "3",
                             "--eval-every",       "2",   "--checkpoint",       saved,
                             "--checkpoint-every", "4",   "--keep-checkpoints", "9"};
  ASSERT_EQ(RunStagecoach(Logged(options)).exit_status, 0);
  const std::vector<nlohmann::json> whole = metrics();
  EXPECT_THAT(whole, SizeIs(15 + 3 + 6));  // steps, ends of epochs, and evaluations within epochs
  EXPECT_EQ(whole[0]["learning_rate"], 0.25);
  std::filesystem::remove_all(saved + "/step-00000015");
  const Finished resumed =
      RunStagecoach({"train", "--checkpoint", saved, "--resume", "--metrics", path_});
  EXPECT_THAT(resumed.err, IsEmpty());
  EXPECT_EQ(metrics(), whole);
}

}  // namespace
}  // namespace stagecoach::tools
