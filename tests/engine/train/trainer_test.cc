#include "engine/train/trainer.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/dataset.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr int kTrainedMicroBatches = 2;
constexpr int64_t kTrainedMicroBatchRows = 16;
constexpr int64_t kTrainedBatchRows = kTrainedMicroBatches * kTrainedMicroBatchRows;

partition::Plan SmallPlan() {
  return EvenPlan(SmallModel(), 3, "1f1b", kTrainedMicroBatches, kTrainedMicroBatchRows);
}

std::unique_ptr<Trainer> MakeSmallTrainer(TrainerOptions options = {}) {
  return MakeTrainer(SmallModel(), SmallPlan(), options);
}

// Returns labeled rows of zeros.
std::shared_ptr<const Dataset> Zeros(int64_t features, int64_t classes) {
  return TableDataset::Create({features}, classes,
                              std::vector<float>(static_cast<size_t>(kTrainedBatchRows * features)),
                              std::vector<int32_t>(kTrainedBatchRows))
      .value();
}

TEST(TrainerCreate, RefusesWhatCannotBe) {
  Model longer = SmallModel();
  longer.layers.push_back(Linear(3));
  Model broken = SmallModel();
  broken.layers[5] = Linear(0);
  partition::Plan incomplete = SmallPlan();
  incomplete.schedule.actions[2].pop_back();
  const auto with = [](const TrainerOptions& options) {
    return Trainer::Create(SmallModel(), SmallPlan(), options);
  };
  ExpectRefusals({
      {Trainer::Create(longer, SmallPlan(), {}), AllOf(HasSubstr("8 layers"), HasSubstr("9"))},
      {Trainer::Create(broken, SmallPlan(), {}), "layer 5"},
      {Trainer::Create(SmallModel(), incomplete, {}), "micro-batch 1",
       absl::StatusCode::kFailedPrecondition},
      {with({.optimizer = Optimizer::Sgd(1.0F)}), "momentum"},
      {with({.learning_rate = LearningRate::Constant(-1.0F)}), "learning rate"},
      {with({.device = {.threads = 0}}), "threads"},
  });
}

TEST(TrainerStep, CountsRowsAndSteps) {
  const auto trainer = MakeSmallTrainer({.learning_rate = LearningRate::WarmupCosine(0.1F, 4, 10)});
  const auto data = SmallData(kTrainedBatchRows);
  EXPECT_EQ(trainer->steps(), 0);
  for (int step = 1; step <= 3; ++step) {
    ASSERT_OK_AND_ASSIGN(const StepResult result, trainer->Step(*data, Rows(0, kTrainedBatchRows)));
    EXPECT_EQ(trainer->steps(), step);
    EXPECT_EQ(result.rows, kTrainedBatchRows);
    EXPECT_FLOAT_EQ(result.learning_rate, 0.025F * static_cast<float>(step));
    EXPECT_EQ(result.gradient_norm, 0.0) << "without clipping";
  }
}

TEST(TrainerStep, RefusesAnotherNumberOfRows) {
  const auto trainer = MakeSmallTrainer();
  const auto data = SmallData(kTrainedBatchRows + 1);
  for (int64_t rows : {int64_t{0}, kTrainedBatchRows - 1, kTrainedBatchRows + 1}) {
    EXPECT_THAT(trainer->Step(*data, Rows(0, rows)),
                IsRefused(absl::StrCat("takes 32 rows, not ", rows)));
  }
}

TEST(TrainerStep, TakesDataOfItsFeaturesAndOfAtMostItsClasses) {
  const auto trainer = MakeSmallTrainer();
  const auto step = [&](int64_t features, int64_t classes) {
    return trainer->Step(*Zeros(features, classes), Rows(0, kTrainedBatchRows));
  };
  EXPECT_THAT(step(kSmallFeatures + 1, kSmallClasses),
              IsRefused(AllOf(HasSubstr("has 21 features"), HasSubstr("takes 20 features"))));
  EXPECT_THAT(step(kSmallFeatures, kSmallClasses + 1),
              IsRefused(AllOf(HasSubstr("5 classes"), HasSubstr("4 outputs"))));
  EXPECT_OK(step(kSmallFeatures, kSmallClasses - 1));
}

TEST(TrainerStep, WorksAfterItRefusedItsArguments) {
  const auto trainer = MakeSmallTrainer();
  const auto data = SmallData(kTrainedBatchRows);
  ASSERT_THAT(trainer->Step(*data, Rows(0, 1)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(trainer->Step(*data, Rows(0, kTrainedBatchRows)));
}

TEST(TrainerStep, TakesStagesThatNeedNoMemoryOfTheirOwn) {
  const ProbeHooks nothing;
  const Model model{
      .input = Shape{kSmallFeatures},
      .layers = {Linear(kSmallClasses), Probe(&nothing), LayerNorm(), Probe(&nothing)}};
  const auto data = SmallData(kTrainedBatchRows);
  const auto loss_after_a_step = [&](int stages) {
    const auto trainer = MakeTrainer(
        model, EvenPlan(model, stages, "1f1b", kTrainedMicroBatches, kTrainedMicroBatchRows), {});
    EXPECT_OK(trainer->Step(*data, Rows(0, kTrainedBatchRows)));
    return trainer->Evaluate(*data).value().loss;
  };
  EXPECT_EQ(loss_after_a_step(4), loss_after_a_step(1));
}

TEST(TrainerStep, Learns) {
  const auto trainer = MakeSmallTrainer({.learning_rate = LearningRate::Constant(3e-3F)});
  constexpr int kBatches = 8;
  const auto data = SmallData(kBatches * kTrainedBatchRows);
  std::vector<double> epoch_losses;
  for (int epoch = 0; epoch < 10; ++epoch) {
    double sum = 0.0;
    for (int step = 0; step < kBatches; ++step) {
      ASSERT_OK_AND_ASSIGN(const StepResult result,
                           trainer->Step(*data, Rows(step * kTrainedBatchRows, kTrainedBatchRows)));
      sum += result.loss;
    }
    epoch_losses.push_back(sum / kBatches);
  }
  EXPECT_LT(epoch_losses.back(), 0.5 * epoch_losses.front());
}

TEST(TrainerStep, LearnsWithMeanSquaredErrorToo) {
  Model model = SmallModel();
  model.loss = MeanSquaredError();
  const auto trainer =
      MakeTrainer(model, SmallPlan(), {.learning_rate = LearningRate::Constant(3e-3F)});
  const auto data = SmallData(kTrainedBatchRows);
  ASSERT_OK_AND_ASSIGN(const StepResult first, trainer->Step(*data, Rows(0, kTrainedBatchRows)));
  StepResult last;
  for (int step = 0; step < 30; ++step) {
    ASSERT_OK_AND_ASSIGN(last, trainer->Step(*data, Rows(0, kTrainedBatchRows)));
  }
  EXPECT_LT(last.loss, 0.5 * first.loss);
}

TEST(TrainerEvaluate, ChangesNothing) {
  const auto trainer = MakeSmallTrainer();
  const auto data = SmallData(kTrainedBatchRows);
  ASSERT_OK(trainer->Step(*data, Rows(0, kTrainedBatchRows)));
  ASSERT_OK_AND_ASSIGN(const std::string before, trainer->ParametersHash());
  ASSERT_OK_AND_ASSIGN(const Evaluation first, trainer->Evaluate(*data));
  ASSERT_OK_AND_ASSIGN(const Evaluation second, trainer->Evaluate(*data));
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_THAT(trainer->ParametersHash(),
              ::testing::Property(&absl::StatusOr<std::string>::value, before));
}

TEST(TrainerEvaluate, AgreesWithTheLossOfTheNextStep) {
  const auto trainer = MakeSmallTrainer();
  const auto data = SmallData(kTrainedBatchRows);
  ASSERT_OK(trainer->Step(*data, Rows(0, kTrainedBatchRows)));
  ASSERT_OK_AND_ASSIGN(const Evaluation evaluation, trainer->Evaluate(*data));
  ASSERT_OK_AND_ASSIGN(const StepResult step, trainer->Step(*data, Rows(0, kTrainedBatchRows)));
  EXPECT_EQ(evaluation.loss, step.loss);
  EXPECT_EQ(evaluation.correct, step.correct);
  EXPECT_EQ(evaluation.rows, step.rows);
}

// The sums over 2 whole batches and 1 row are those over the batches plus that row: padding does
// not count.
TEST(TrainerEvaluate, CountsEveryRowOnce) {
  const auto trainer = MakeSmallTrainer();
  const auto sum_of = [&](const Dataset& data) {
    const Evaluation evaluation = trainer->Evaluate(data).value();
    EXPECT_EQ(evaluation.rows, data.rows());
    return std::pair(evaluation.loss * static_cast<double>(data.rows()), evaluation.correct);
  };
  const auto data = SmallData(2 * kTrainedBatchRows + 1);
  std::vector<float> last_row(kSmallFeatures);
  data->CopyNumbers(0, 2 * kTrainedBatchRows, absl::MakeSpan(last_row));
  const auto last = TableDataset::Create({kSmallFeatures}, kSmallClasses, last_row,
                                         {data->label(2 * kTrainedBatchRows)})
                        .value();
  const auto [all_loss, all_correct] = sum_of(*data);
  const auto [batches_loss, batches_correct] = sum_of(*SmallData(2 * kTrainedBatchRows));
  const auto [last_loss, last_correct] = sum_of(*last);
  EXPECT_DOUBLE_EQ(all_loss, batches_loss + last_loss);
  EXPECT_EQ(all_correct, batches_correct + last_correct);
}

TEST(TrainerEvaluate, EndsOnceItIsStopped) {
  const auto stop = [] { return true; };
  const auto evaluation = MakeSmallTrainer()->Evaluate(*SmallData(2 * kTrainedBatchRows), stop);
  ASSERT_OK(evaluation);
  EXPECT_EQ(evaluation->rows, 0);
}

TEST(TrainerEvaluate, RefusesDataOfOtherFeatures) {
  const auto trainer = MakeSmallTrainer();
  EXPECT_THAT(trainer->Evaluate(*Zeros(kSmallFeatures - 1, kSmallClasses)),
              IsRefused("has 19 features"));
}

TEST(TrainerDevices, ReportWhatEachIsAndDid) {
  const auto trainer = MakeSmallTrainer();
  for (const std::vector<DeviceReport> idle = trainer->Devices().value();
       const DeviceReport& report : idle) {
    EXPECT_EQ(report.busy, 0.0);
  }
  ASSERT_OK(trainer->Step(*SmallData(kTrainedBatchRows), Rows(0, kTrainedBatchRows)));
  const std::vector<DeviceReport> devices = trainer->Devices().value();
  EXPECT_THAT(devices, ElementsAre(Field(&DeviceReport::device, "cpu:0"),
                                   Field(&DeviceReport::device, "cpu:1"),
                                   Field(&DeviceReport::device, "cpu:2")));
  for (const DeviceReport& report : devices) {
    EXPECT_GT(report.busy, 0.0);
    EXPECT_LE(report.busy, 1.0);
  }
}

TEST(TrainerRun, SaysWhichStagesEachDeviceHolds) {
  const auto trainer = MakeTrainer(
      SmallModel(), EvenPlan(SmallModel(), 2, "zb-v", kTrainedMicroBatches, kTrainedMicroBatchRows),
      {});
  const partition::CompiledPlan& report = trainer->run().compiled;
  ASSERT_EQ(report.ranks.size(), 2);
  EXPECT_THAT(report.ranks[0].stages, ElementsAre(StageId(0), StageId(3)));
  EXPECT_THAT(report.ranks[1].stages, ElementsAre(StageId(1), StageId(2)));
  EXPECT_EQ(report.stages[0].parameters, (20 * 600 + 600) + (600 * 24 + 24));
  EXPECT_EQ(report.stages[2].first_layer, 4);
  EXPECT_EQ(report.stages[2].last_layer, 5);
}

TEST(TrainerParameter, IsFoundByItsName) {
  const auto trainer = MakeSmallTrainer();
  ASSERT_OK_AND_ASSIGN(const std::vector<float> bias, trainer->Parameter("layer 2: 1.bias"));
  EXPECT_EQ(bias, std::vector<float>(24, 0.0F));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> gamma, trainer->Parameter("layer 6: 0.0.gamma"));
  EXPECT_EQ(gamma, std::vector<float>(30, 1.0F));
}

TEST(TrainerParameter, ListsTheNamesIfThereIsNone) {
  const auto trainer = MakeSmallTrainer();
  EXPECT_THAT(trainer->Parameter("layer 2: weight"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("layer 0: weight"), HasSubstr("layer 7: bias"))));
}

}  // namespace
}  // namespace stagecoach::engine
