// The first two promises of the engine: the partition never changes the answer, and what is
// predicted is what happens.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/fit.h"
#include "engine/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;

constexpr int kMicroBatches = 4;
constexpr int64_t kMicroBatchRows = 18;  // more than one tile of rows, and not a multiple of it
constexpr int64_t kBatchRows = kMicroBatches * kMicroBatchRows;
constexpr int kSteps = 3;
constexpr float kClipNorm = 0.05F;  // far below the norms that occur

// Everything a run gives that must not depend on the partition.
struct Answer {
  std::vector<double> losses;
  std::vector<int64_t> correct;
  std::vector<double> gradient_norms;
  double evaluation_loss = 0.0;
  int64_t evaluation_correct = 0;
  std::string initial_hash, final_hash;

  friend bool operator==(const Answer&, const Answer&) = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "losses " << ::testing::PrintToString(answer.losses) << ", norms "
       << ::testing::PrintToString(answer.gradient_norms) << ", correct "
       << ::testing::PrintToString(answer.correct) << ", evaluation " << answer.evaluation_loss
       << ", parameters " << answer.final_hash;
}

struct Partition {
  int stages = 1;
  std::string schedule = "gpipe";
  int threads = 1;
};

std::unique_ptr<Trainer> TrainerOn(const Partition& partition, const Optimizer& optimizer,
                                   int64_t device_memory_bytes = 0) {
  const Model model = SmallModel();
  return MakeTrainer(
      model, EvenPlan(model, partition.stages, partition.schedule, kMicroBatches, kMicroBatchRows),
      {.optimizer = optimizer,
       .learning_rate = LearningRate::WarmupCosine(0.05F, 2, 10),
       .threads_per_device = partition.threads,
       .device_memory_bytes = device_memory_bytes});
}

Answer AnswerOf(Trainer& trainer) {
  const auto data = SmallData(kSteps * kBatchRows);
  const auto test_data = SmallData(kBatchRows + 25);  // the second batch is not whole
  Answer answer;
  answer.initial_hash = trainer.ParametersHash().value();
  for (int step = 0; step < kSteps; ++step) {
    const StepResult result = trainer.Step(*data, Rows(step * kBatchRows, kBatchRows)).value();
    answer.losses.push_back(result.loss);
    answer.correct.push_back(result.correct);
    answer.gradient_norms.push_back(result.gradient_norm);
  }
  const Evaluation evaluation = trainer.Evaluate(*test_data).value();
  answer.evaluation_loss = evaluation.loss;
  answer.evaluation_correct = evaluation.correct;
  answer.final_hash = trainer.ParametersHash().value();
  return answer;
}

std::vector<Optimizer> Optimizers() {
  std::vector<Optimizer> optimizers = {Optimizer::AdamW(), Optimizer::Sgd()};
  for (int i = 0; i < 2; ++i) {
    optimizers.push_back(optimizers[static_cast<size_t>(i)]);
    optimizers.back().clip_norm = kClipNorm;
  }
  return optimizers;
}

std::string Describe(const Optimizer& optimizer) {
  return absl::StrCat(optimizer.kind == Optimizer::Kind::kAdamW ? "AdamW" : "SGD", ", clip norm ",
                      optimizer.clip_norm);
}

class Partitions : public ::testing::TestWithParam<std::tuple<int, std::string, int>> {
 protected:
  static Partition Given() {
    const auto& [stages, schedule, threads] = GetParam();
    return {stages, schedule, threads};
  }
};

TEST_P(Partitions, NeverChangeTheAnswer) {
  for (const Optimizer& optimizer : Optimizers()) {
    SCOPED_TRACE(Describe(optimizer));
    const Answer expected = AnswerOf(*TrainerOn(Partition{}, optimizer));
    EXPECT_EQ(AnswerOf(*TrainerOn(Given(), optimizer)), expected);
  }
}

TEST_P(Partitions, TakeThePredictedMemory) {
  for (const Optimizer& optimizer : Optimizers()) {
    SCOPED_TRACE(Describe(optimizer));
    const auto trainer = TrainerOn(Given(), optimizer);
    AnswerOf(*trainer);
    for (const DeviceReport& device : trainer->Devices()) {
      EXPECT_GT(device.predicted_peak_bytes, 0);
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
    }
  }
}

TEST_P(Partitions, StashAsManyMicroBatchesAsTheScheduleSays) {
  const auto trainer = TrainerOn(Given(), Optimizer::Sgd());
  AnswerOf(*trainer);
  const Partition partition = Given();
  for (const DeviceReport& device : trainer->Devices()) {
    const int in_flight =
        partition.schedule == "1f1b" ? partition.stages - device.stage : kMicroBatches;
    EXPECT_EQ(device.peak_stashed, std::min(in_flight, kMicroBatches)) << device.device;
  }
}

TEST_P(Partitions, FitExactlyIntoThePredictedMemory) {
  int64_t largest = 0;
  for (const DeviceReport& device : TrainerOn(Given(), Optimizer::AdamW())->Devices()) {
    largest = std::max(largest, device.predicted_peak_bytes);
  }
  const auto trainer = TrainerOn(Given(), Optimizer::AdamW(), largest);
  EXPECT_OK(trainer->Step(*SmallData(kBatchRows), Rows(0, kBatchRows)));

  const Partition partition = Given();
  const Model model = SmallModel();
  EXPECT_THAT(
      Trainer::Create(
          model,
          EvenPlan(model, partition.stages, partition.schedule, kMicroBatches, kMicroBatchRows),
          {.threads_per_device = partition.threads, .device_memory_bytes = largest - 1}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cpu:")));
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<int, std::string, int>>& test) {
  const auto& [stages, schedule, threads] = test.param;
  return absl::StrCat("Stages", stages, "_", schedule, "_Threads", threads);
}

INSTANTIATE_TEST_SUITE_P(All, Partitions,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 7),
                                            ::testing::Values("gpipe", "1f1b"),
                                            ::testing::Values(1, 2)),
                         NameOf);

TEST(PartitionsTest, ClippingActsInTheseRuns) {
  for (const Optimizer& optimizer : Optimizers()) {
    if (optimizer.clip_norm == 0.0F) continue;
    EXPECT_THAT(AnswerOf(*TrainerOn(Partition{}, optimizer)).gradient_norms, Each(Gt(kClipNorm)));
  }
}

TEST(PartitionsTest, UnevenCutsGiveTheSameAnswer) {
  const Model model = SmallModel();
  partition::Plan plan = EvenPlan(model, 3, "1f1b", kMicroBatches, kMicroBatchRows);
  const TrainerOptions options{.learning_rate = LearningRate::Constant(0.01F)};
  const Answer even = AnswerOf(*MakeTrainer(model, plan, options));
  for (const std::vector<int>& first_layer :
       {std::vector<int>{0, 1, 7}, std::vector<int>{0, 6, 7}, std::vector<int>{0, 1, 2}}) {
    plan.first_layer = first_layer;
    EXPECT_EQ(AnswerOf(*MakeTrainer(model, plan, options)), even)
        << ::testing::PrintToString(first_layer);
  }
}

TEST(PartitionsTest, AnotherSeedGivesAnotherAnswer) {
  const Model model = SmallModel();
  const partition::Plan plan = EvenPlan(model, 2, "1f1b", kMicroBatches, kMicroBatchRows);
  const Answer one = AnswerOf(*MakeTrainer(model, plan, {.seed = 1}));
  const Answer two = AnswerOf(*MakeTrainer(model, plan, {.seed = 2}));
  EXPECT_NE(one.initial_hash, two.initial_hash);
  EXPECT_NE(one.losses, two.losses);
}

TEST(PartitionsTest, AWholeFitHasTheSameHash) {
  const TrainTest data{SmallData(3 * kBatchRows + 5), SmallData(50)};
  const auto fit = [&](const Partition& partition) {
    const auto trainer = TrainerOn(partition, Optimizer::AdamW());
    return Fit(*trainer, data, {.epochs = 2}).value().step_losses_hash;
  };
  EXPECT_EQ(fit({.stages = 4, .schedule = "1f1b"}), fit({}));
}

}  // namespace
}  // namespace stagecoach::engine
