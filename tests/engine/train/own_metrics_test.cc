// Metrics of a caller's own (EvaluationMetric).
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int64_t kTestedRows = 30;  // two batches and a half

// The share of rows whose largest output is at their label, worse by 1 with each evaluation.
class ShareRight final : public EvaluationMetric {
 public:
  std::string name() const override { return own_name; }
  void Begin() override {
    ++begun;
    right_ = rows_ = 0;
  }
  absl::Status Add(const Dataset& data, const Outputs& outputs) override {
    if (fails) return absl::InternalError("no");
    EXPECT_EQ(outputs.first_row, rows_);
    const auto width = static_cast<size_t>(kSmallClasses);
    EXPECT_EQ(outputs.values.size(), static_cast<size_t>(outputs.rows) * width);
    for (int64_t i = 0; i < outputs.rows; ++i, ++rows_) {
      const float* const y = outputs.values.data() + static_cast<size_t>(i) * width;
      right_ += std::max_element(y, y + width) - y == data.label(outputs.first_row + i);
    }
    return absl::OkStatus();
  }
  double Value() const override {
    EXPECT_EQ(rows_, kTestedRows);
    return static_cast<double>(right_) / static_cast<double>(rows_) - begun;
  }

  std::string own_name = "test_share";
  bool fails = false;
  int begun = 0;

 private:
  int64_t right_ = 0, rows_ = 0;
};

TrainTest SmallSets() { return {.train = SmallData(24), .test = SmallData(kTestedRows)}; }

std::unique_ptr<Trainer> TrainerOver(int devices) {
  return MakeTrainer(SmallModel(), EvenPlan(SmallModel(), devices, "1f1b", 4, 3), {});
}

TEST(EvaluationMetric, IsOfAllRowsInOrderWithTheResultsAndTheCheckpoints) {
  for (const int devices : {1, 3}) {
    SCOPED_TRACE(devices);
    const testing::TestFolder folder;
    const std::string path = folder.path() / "run";
    const auto share = std::make_shared<ShareRight>();
    std::vector<EpochResult> epochs;
    FitOptions options = {.epochs = 3,
                          .checkpoints = {.folder = path},
                          .own_metrics = {share},
                          .on_epoch = [&](const EpochResult& epoch) { epochs.push_back(epoch); }};
    options.checkpoints.save.retention = {.newest = 1, .best_by = "test_share"};
    const auto trainer = TrainerOver(devices);
    ASSERT_OK(Fit(*trainer, SmallSets(), options));
    ASSERT_EQ(epochs.size(), 3u);
    for (const EpochResult& epoch : epochs) {
      EXPECT_THAT(epoch.more, ElementsAre(Pair("test_share", epoch.test_accuracy - epoch.epoch)));
    }
    // The best, and the newest.
    ASSERT_OK_AND_ASSIGN(const std::vector<FoundCheckpoint> kept, ListCheckpoints(path));
    EXPECT_EQ(kept.size(), 2u);
  }
}

TEST(EvaluationMetric, MayBeTheMeanOfAFunctionOfEachRow) {
  int64_t next = 0;
  const auto is_right = [&](const Dataset& data, int64_t row, absl::Span<const float> y) {
    EXPECT_EQ(row, next++ % kTestedRows);
    EXPECT_EQ(y.size(), static_cast<size_t>(kSmallClasses));
    return std::max_element(y.begin(), y.end()) - y.begin() == data.label(row) ? 1.0 : 0.0;
  };
  std::vector<EpochResult> epochs;
  const auto trainer = TrainerOver(2);
  ASSERT_OK(Fit(*trainer, SmallSets(),
                {.epochs = 3,
                 .own_metrics = {MeanOfRows("test_right", is_right)},
                 .on_epoch = [&](const EpochResult& epoch) { epochs.push_back(epoch); }}));
  EXPECT_EQ(next, 3 * kTestedRows);
  ASSERT_EQ(epochs.size(), 3u);
  for (const EpochResult& epoch : epochs) {
    EXPECT_THAT(epoch.more, ElementsAre(Pair("test_right", epoch.test_accuracy)));
  }
}

TEST(EvaluationMetric, MayEndTheRun) {
  const auto trainer = TrainerOver(2);
  ASSERT_OK_AND_ASSIGN(const FitResult fit, Fit(*trainer, SmallSets(),
                                                {.epochs = 9,
                                                 .own_metrics = {std::make_shared<ShareRight>()},
                                                 .best_by = "test_share",
                                                 .patience = 2}));
  EXPECT_TRUE(fit.out_of_patience);
  EXPECT_EQ(fit.epochs, 3);
  EXPECT_EQ(fit.best_by, "test_share");
}

TEST(EvaluationMetric, RefusesNamesAndFailures) {
  const auto trainer = TrainerOver(1);
  const auto share = std::make_shared<ShareRight>();
  FitOptions options = {.own_metrics = {share}};
  for (const auto& [name, message] :
       std::vector<std::pair<std::string, std::string>>{{"", "\"\" is no name of a metric"},
                                                        {"a b", "\"a b\" is no name of a metric"},
                                                        {"test_f1", "another metric test_f1"}}) {
    share->own_name = name;
    EXPECT_THAT(Fit(*trainer, SmallSets(), options), IsRefused(message));
  }
  share->own_name = "mine";
  options.best_by = "his";
  EXPECT_THAT(Fit(*trainer, SmallSets(), options), IsRefused("there is no metric his"));
  options.best_by = "mine";
  share->fails = true;
  EXPECT_THAT(Fit(*trainer, SmallSets(), options),
              StatusIs(absl::StatusCode::kInternal, "mine: no"));
}

}  // namespace
}  // namespace stagecoach::engine
