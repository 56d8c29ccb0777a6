// The page of a run, and what it draws.
#include "tools/stagecoach/train/run_page.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tools/stagecoach/train/run_history.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

nlohmann::ordered_json StepOf(int step, double loss) {
  return {{"event", "step"},
          {"step", step},
          {"loss", loss},
          {"learning_rate", 0.5},
          {"samples_per_second", 100.0}};
}

TEST(RunHistory, HasAPointForEachOfAFewSteps) {
  RunHistory history;
  history.Add(StepOf(1, 3.0));
  history.Add({{"event", "step"}, {"step", 2}, {"skipped", "NaN"}, {"learning_rate", 0.5}});
  history.Add(StepOf(3, 2.0));
  history.Add({{"event", "epoch"}, {"step", 3}, {"test_loss", 1.5}, {"test_accuracy", nullptr}});
  history.Add({{"event", "answer"}, {"step", 3}});
  EXPECT_THAT(history.losses(), ElementsAre(Pair(1, 3.0), Pair(3, 2.0)));
  EXPECT_THAT(history.Evaluated("test_loss"), ElementsAre(Pair(3, 1.5)));
  EXPECT_THAT(history.Evaluated("test_accuracy"), IsEmpty());
  EXPECT_EQ(history.last_step(), 3);
}

TEST(RunHistory, HasMeansOfManySteps) {
  RunHistory history;
  constexpr int kSteps = 5000;
  for (int step = 1; step <= kSteps; ++step) history.Add(StepOf(step, step));
  EXPECT_THAT(history.losses(), SizeIs(::testing::Le(800)));
  for (const auto& [step, loss] : history.losses()) EXPECT_DOUBLE_EQ(step, loss);
  EXPECT_DOUBLE_EQ(history.losses().front().first, 4.5);  // of eight steps
}

class PageOfARun : public ::testing::Test {
 protected:
  Finished Train(const Arguments& more) const {
    return Child(Joined({"train", "--layers", "4", "--width", "8", "--global-batch-size", "16",
                         "--devices", "2"},
                        more),
                 Child::Output::kPipe, std::nullopt, folder_.path())
        .Wait();
  }
  std::string Page(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_.path() / name).rdbuf();
    return text.str();
  }
  const TestFolder folder_;
};

TEST_F(PageOfARun, HasItsCurvesDevicesAndPlanAndNothingFromElsewhere) {
  const Finished run = Train({"--data", "synthetic:64x8x2", "--html", "page.html"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const std::string page = Page("page.html");
  for (const char* part :
       {"the default network on synthetic:64x8x2", "trained in ", "<h2>Loss</h2>",
        "<h2>Accuracy</h2>", "<h2>Learning rate</h2>", "Samples per second", "measured peak",
        "cpu:1", "<h2>One step</h2>", "<h2>Stages</h2>", "prefers-color-scheme:dark"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  EXPECT_THAT(page, Not(HasSubstr("http://")));
  EXPECT_THAT(page, Not(HasSubstr("https://")));
  EXPECT_THAT(page, Not(HasSubstr("http-equiv=\"refresh\"")));  // it is over
}

TEST_F(PageOfARun, IsInItsFolderAndContinuesWithIt) {
  ASSERT_EQ(
      Train({"--data", "synthetic:64x8x2", "--checkpoint", "run", "--epochs", "1"}).exit_status, 0);
  EXPECT_THAT(Page("run/run.html"), AllOf(HasSubstr("of 4"), HasSubstr("saved as run/step-")));
  const Finished second = RunStagecoach(
      {"train", "--checkpoint", (folder_.path() / "run").string(), "--resume", "--epochs", "3"});
  ASSERT_EQ(second.exit_status, 0) << second.err;
  const std::string page = Page("run/run.html");
  EXPECT_THAT(page, AllOf(HasSubstr("of 12"), HasSubstr("resumes after step 4")));
  // Three evaluations, of which one was the first run's.
  size_t dots = 0;
  for (size_t at = page.find("<title>test: "); at != page.npos;
       at = page.find("<title>test: ", at + 1)) {
    ++dots;
  }
  EXPECT_EQ(dots, 6) << "of the loss, and of the accuracy";
}

TEST_F(PageOfARun, SaysWhatItFailedOf) {
  const Finished run = Train({"--data", "synthetic:64x8x2", "--html", "page.html",
                              "--learning-rate", "1e6", "--optimizer", "sgd", "--epochs", "50"});
  EXPECT_EQ(run.exit_status, kStatusBadData);
  EXPECT_THAT(Page("page.html"),
              AllOf(HasSubstr("ended with an error"), HasSubstr("try a lower --learning-rate")));
}

TEST_F(PageOfARun, EscapesWhatIsTyped) {
  std::ofstream(folder_.path() / "<b>.csv") << "a,label\n";
  std::ofstream data(folder_.path() / "<b>.csv", std::ios::app);
  for (int i = 0; i < 40; ++i) data << i << "," << i % 2 << "\n";
  data.close();
  ASSERT_EQ(Train({"--data", "<b>.csv", "--html", "page.html", "--epochs", "1"}).exit_status, 0);
  EXPECT_THAT(Page("page.html"), AllOf(HasSubstr("on &lt;b&gt;.csv"), Not(HasSubstr("<b>.csv"))));
}

TEST_F(PageOfARun, ThatCannotBeWrittenIsRefusedBeforeTheRun) {
  const Finished run = Train({"--data", "synthetic:64x8x2", "--html", "no/page.html"});
  EXPECT_EQ(run.exit_status, kStatusCannotWrite);
  EXPECT_THAT(run.out, Not(HasSubstr("epoch")));
}

}  // namespace
}  // namespace stagecoach::tools
