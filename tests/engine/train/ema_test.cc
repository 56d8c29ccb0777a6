#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/checkpoint/checkpoint_values.h"
#include "engine/nn/layers/image/conv2d.h"
#include "engine/nn/layers/image/image_norm.h"
#include "engine/nn/layers/image/pooling.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/ema_runs.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::HasSubstr;

constexpr int64_t kBatchOfAverages = 12;

Optimizer Averaging() {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.ema_decay = 0.9F;
  return optimizer;
}

std::unique_ptr<Trainer> TrainerWith(const Optimizer& optimizer) {
  return MakeTrainer(SmallModel(), EvenPlan(SmallModel(), 2, "1f1b", 4, 3),
                     {.optimizer = optimizer, .learning_rate = LearningRate::Constant(0.02F)});
}

void TakeSteps(Trainer& trainer, int steps) {
  for (int step = 0; step < steps; ++step) {
    ASSERT_OK(trainer.Step(*SmallData(kBatchOfAverages), Rows(0, kBatchOfAverages)));
  }
}

std::unique_ptr<Trainer> Predictor() {
  return Trainer::Create(PrepareRun(SmallModel(), {.devices = 2,
                                                   .predicts = true,
                                                   .micro_batches = 4,
                                                   .micro_batch_rows = 3,
                                                   .optimizer = Averaging()})
                             .value(),
                         {.optimizer = Averaging()})
      .value();
}

TEST(Averages, FollowTheirFormula) { ExpectAveragesToFollowTheirFormula({}); }

TEST(Averages, FollowTheirFormulaInBf16) {
  const absl::Status has = stagecoach::testing::HasOnCpu(Precision::kBfloat16);
  if (!has.ok()) GTEST_SKIP() << has.message();
  ExpectAveragesToFollowTheirFormula({.precision = Precision::kBfloat16});
}

TEST(Averages, AreThoseOfPyTorch) { ExpectAveragesToMatchPyTorch({}); }

TEST(Averages, HaveTheSameBitsEverywhere) {
  ExpectAveragesToHaveTheSameBitsEverywhere({}, /*devices=*/4);
}

TEST(Averages, TakeAFloatForEachTrainedParameter) {
  const auto bytes_of = [](const Optimizer& optimizer) {
    int64_t bytes = 0;
    const ModelProfile profile = AnalyzeModel(SmallModel(), {.optimizer = optimizer}).value();
    for (const partition::LayerCost& layer : profile.layers) bytes += layer.memory.optimizer_bytes;
    return bytes;
  };
  EXPECT_EQ(2 * bytes_of(Averaging()), 3 * bytes_of(Optimizer::AdamW()));
}

TEST(Averages, AreWhatOthersReadOfACheckpoint) {
  const TestFolder folder;
  const auto trainer = TrainerWith(Averaging());
  TakeSteps(*trainer, 3);
  ASSERT_OK_AND_ASSIGN(const std::string path, trainer->Save(folder.path().string()));
  const ParameterValues averages = AveragesOf(*trainer);
  EXPECT_NE(averages, ValuesOf(*trainer));

  const auto predictor = Predictor();
  ASSERT_OK(predictor->Restore(path));
  EXPECT_EQ(ValuesOf(*predictor), averages);
  const auto data = SmallData(kBatchOfAverages);
  EXPECT_EQ(predictor->Predict(*data).value(), trainer->Predict(*data).value());
  EXPECT_EQ(predictor->Evaluate(*data).value().loss, trainer->Evaluate(*data).value().loss);

  ASSERT_OK_AND_ASSIGN(const CheckpointValues values, CheckpointValues::Open(path));
  for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
    std::vector<float> read(averages.at(parameter.name).size());
    ASSERT_OK(values.Read(parameter, TensorOf(read)));
    EXPECT_EQ(read, averages.at(parameter.name)) << parameter.name;
  }
}

TEST(Averages, ContinueWithTheRunThatIsResumed) {
  const TestFolder folder;
  const auto trainer = TrainerWith(Averaging());
  TakeSteps(*trainer, 2);
  ASSERT_OK_AND_ASSIGN(const std::string path, trainer->Save(folder.path().string()));
  const auto resumed = TrainerWith(Averaging());
  ASSERT_OK(resumed->Restore(path));
  EXPECT_EQ(AveragesOf(*resumed), AveragesOf(*trainer));
  EXPECT_EQ(ValuesOf(*resumed), ValuesOf(*trainer));
  for (Trainer* const each : {trainer.get(), resumed.get()}) TakeSteps(*each, 2);
  EXPECT_EQ(AveragesOf(*resumed), AveragesOf(*trainer));
  EXPECT_EQ(ValuesOf(*resumed), ValuesOf(*trainer));
}

TEST(Averages, OfACheckpointBeforeTheFirstStepAreTheInitialParameters) {
  const TestFolder folder;
  const auto trainer = TrainerWith(Averaging());
  ASSERT_OK_AND_ASSIGN(const std::string path, trainer->Save(folder.path().string()));
  const auto predictor = Predictor();
  ASSERT_OK(predictor->Restore(path));
  EXPECT_EQ(ValuesOf(*predictor), ValuesOf(*trainer));
}

TEST(Averages, StartAtParametersThatWereSet) {
  const auto trainer = TrainerWith(Averaging());
  const auto other = TrainerWith(Averaging());
  for (Trainer* const each : {trainer.get(), other.get()}) {
    std::vector<float> values = each->Parameter("layer 7: weight").value();
    for (float& value : values) value += 0.5F;
    // Before anything else, and after an evaluation.
    if (each == other.get()) {
      ASSERT_OK(each->Evaluate(*SmallData(5)));
    }
    ASSERT_OK(each->SetParameter("layer 7: weight", values));
    EXPECT_EQ(AveragesOf(*each), ValuesOf(*each));
    TakeSteps(*each, 1);
  }
  EXPECT_EQ(AveragesOf(*trainer), AveragesOf(*other));
}

TEST(Averages, AreNeitherLostNorInventedByARunThatIsResumed) {
  const TestFolder folder;
  for (const auto& [from, to, why] :
       {std::tuple(Averaging(), Optimizer::AdamW(), "which this run would lose"),
        std::tuple(Optimizer::AdamW(), Averaging(), "has no averages of the parameters")}) {
    const auto trainer = TrainerWith(from);
    TakeSteps(*trainer, 1);
    ASSERT_OK_AND_ASSIGN(const std::string path, trainer->Save((folder.path() / why).string()));
    EXPECT_THAT(TrainerWith(to)->Restore(path),
                StatusIs(absl::StatusCode::kFailedPrecondition, why));
  }
}

TEST(Averages, ExcludeTrainingWhileTheyAreInPlace) {
  const TestFolder folder;
  const auto trainer = TrainerWith(Averaging());
  TakeSteps(*trainer, 1);
  const ParameterValues before = ValuesOf(*trainer);
  const auto data = SmallData(kBatchOfAverages);
  const absl::Status ended = trainer->WithAverages([&] {
    EXPECT_THAT(trainer->Step(*data, Rows(0, kBatchOfAverages)),
                StatusIs(absl::StatusCode::kFailedPrecondition, "their averages"));
    EXPECT_THAT(trainer->Save(folder.path().string()),
                StatusIs(absl::StatusCode::kFailedPrecondition, "their averages"));
    EXPECT_OK(trainer->Evaluate(*data));
    return absl::CancelledError("the caller's");
  });
  EXPECT_EQ(ended, absl::CancelledError("the caller's"));
  EXPECT_EQ(ValuesOf(*trainer), before);
  TakeSteps(*trainer, 1);
}

// The statistics of batch norms are averages of their own.
TEST(Averages, AreOfParametersThatTheOptimizerUpdates) {
  const Model model = {
      .input = Shape{2, 4, 4},
      .layers = {Conv2d({.outputs = 3, .kernel = 3, .padding = 1, .has_bias = false}), BatchNorm(),
                 GlobalAvgPool(), Linear(kSmallClasses)}};
  const auto trainer =
      MakeTrainer(model, EvenPlan(model, 2, "1f1b", 4, 3), {.optimizer = Averaging()});
  std::vector<float> x(static_cast<size_t>(kBatchOfAverages * 32));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0F;
  const auto data =
      TableDataset::Create(model.input, kSmallClasses, x, std::vector<int32_t>(kBatchOfAverages, 1))
          .value();
  for (int step = 0; step < 3; ++step) ASSERT_OK(trainer->Step(*data, Rows(0, kBatchOfAverages)));
  const ParameterValues values = ValuesOf(*trainer), averages = AveragesOf(*trainer);
  int statistics = 0;
  for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
    const bool is_statistic = parameter.update.is_average();
    statistics += is_statistic ? 1 : 0;
    EXPECT_EQ(values.at(parameter.name) == averages.at(parameter.name), is_statistic)
        << parameter.name;
  }
  EXPECT_EQ(statistics, 2);
}

}  // namespace
}  // namespace stagecoach::engine
