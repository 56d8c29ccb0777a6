// Runs on images in either precision: the statistics and averages of batch norms, wherever the
// model is split.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "tests/engine/train/models/image_models.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/close_to.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::TestFolder;

constexpr int64_t kPixels = 5 * 4;  // kSmallFeatures
constexpr int kImageMicroBatches = 8;
constexpr int64_t kImageRows = 3;  // of a micro-batch
constexpr int64_t kImageBatch = kImageMicroBatches * kImageRows;

struct ImagePlace {
  int devices = 1;
  std::string schedule = "gpipe";
  partition::Replication replication = {.gradient_blocks = 2};
  int threads = 1;
};

std::unique_ptr<Trainer> ImageTrainer(Precision precision, const ImagePlace& place,
                                      const Optimizer& optimizer) {
  return MakeTrainer(ImageModel(),
                     EvenPlan(ImageModel(), place.devices, place.schedule, kImageMicroBatches,
                              kImageRows, 0, place.replication),
                     {.optimizer = optimizer,
                      .learning_rate = LearningRate::Constant(0.01F),
                      .device = {.threads = place.threads, .precision = precision}});
}

Optimizer ClippedAdamW() {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.clip_norm = 0.05F;
  return optimizer;
}

std::vector<ImagePlace> ImagePlaces() {
  return {{.threads = 3},      {2, "1f1b"},         {4, "gpipe"},
          {2, "zb-h1"},        {2, "zb-v", {2, 2}}, {2, "1f1b", {2, 2, /*shards_optimizer=*/true}},
          {1, "gpipe", {2, 2}}};
}

class ImageTraining : public ::testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    const absl::Status has = stagecoach::testing::HasOnCpu(GetParam());
    if (!has.ok()) GTEST_SKIP() << has.message();
  }
  static std::unique_ptr<Trainer> TrainerAt(const ImagePlace& place, const Optimizer& optimizer) {
    return ImageTrainer(GetParam(), place, optimizer);
  }
};

TEST_P(ImageTraining, IsTheSameWhereverTheModelIsCutAndTakesThePredictedMemory) {
  const auto data = SmallData(3 * kImageBatch);
  const auto test_data = SmallData(kImageBatch + 5);  // the second batch is not whole
  const auto answer_at = [&](const ImagePlace& place, const Optimizer& optimizer) {
    const auto trainer = TrainerAt(place, optimizer);
    std::vector<double> losses;
    for (int64_t step = 0; step < 3; ++step) {
      losses.push_back(trainer->Step(*data, Rows(step * kImageBatch, kImageBatch)).value().loss);
    }
    losses.push_back(trainer->Evaluate(*test_data).value().loss);
    const std::vector<DeviceReport> devices = trainer->Devices().value();
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
    }
    return std::pair(losses, trainer->ParametersHash().value());
  };
  for (const Optimizer& optimizer : {Optimizer::Sgd(), ClippedAdamW()}) {
    const auto expected = answer_at({}, optimizer);
    for (const ImagePlace& place : ImagePlaces()) {
      SCOPED_TRACE(absl::StrCat(place.devices, " devices, ", place.schedule, ", ",
                                place.replication.replicas, " replicas"));
      EXPECT_EQ(answer_at(place, optimizer), expected);
    }
  }
}

// The first layer's x is the data, whatever the optimizer does to the rest. Statistics and averages
// are float32 in either precision.
TEST_P(ImageTraining, AveragesMoveTowardsTheMeanOverAllMicroBatches) {
  const auto data = SmallData(kImageBatch);
  std::vector<std::vector<double>> images;
  for (int64_t row = 0; row < kImageBatch; ++row) {
    std::vector<float> pixels(kPixels);
    data->CopyNumbers(0, row, absl::MakeSpan(pixels));
    images.emplace_back(pixels.begin(), pixels.end());
  }
  double mean = 0.0, variance = 0.0;
  for (int64_t micro_batch = 0; micro_batch < kImageMicroBatches; ++micro_batch) {
    constexpr double kElements = kImageRows * kPixels;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < kImageRows; ++i) {
      for (double x : images[static_cast<size_t>(micro_batch * kImageRows + i)]) {
        if (GetParam() == Precision::kBfloat16) x = kernels::Bfloat16(static_cast<float>(x));
        sum += x;
        squares += x * x;
      }
    }
    mean += sum / kElements / kImageMicroBatches;
    variance += (squares - sum * sum / kElements) / (kElements - 1.0) / kImageMicroBatches;
  }
  for (const ImagePlace& place : ImagePlaces()) {
    for (const Optimizer& optimizer : {Optimizer::Sgd(), ClippedAdamW()}) {
      const auto trainer = TrainerAt(place, optimizer);
      ASSERT_OK(trainer->Step(*data, Rows(0, kImageBatch)));
      const auto value = [&](const char* name) {
        return std::vector<double>{double{trainer->Parameter(name).value().at(0)}};
      };
      // Magnitudes are below 4, and sums have 60 terms.
      EXPECT_THAT(value("layer 0: running_mean"), CloseTo({0.25 * mean}, Gamma(100) * 4.0));
      EXPECT_THAT(value("layer 0: running_var"),
                  CloseTo({0.75 + 0.25 * variance}, Gamma(200) * 16.0));
    }
  }
}

// Other samples of its micro-batch do not change it either.
TEST_P(ImageTraining, PaddingDoesNotChangeWhatASampleGives) {
  const auto trainer = TrainerAt({2, "1f1b"}, Optimizer::AdamW());
  ASSERT_OK(trainer->Step(*SmallData(kImageBatch), Rows(0, kImageBatch)));
  const std::vector<float> all = trainer->Predict(*SmallData(kImageBatch)).value();
  const std::vector<float> some = trainer->Predict(*SmallData(4)).value();
  ASSERT_EQ(some.size(), size_t{4 * kSmallClasses});
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
}

TEST_P(ImageTraining, GoesOnFromACheckpointOnOtherStages) {
  const auto data = SmallData(2 * kImageBatch);
  const auto expected = TrainerAt({}, Optimizer::AdamW());
  const auto first = TrainerAt({2, "zb-v", {2, 2, /*shards_optimizer=*/true}}, Optimizer::AdamW());
  const auto second = TrainerAt({4, "1f1b"}, Optimizer::AdamW());
  const TestFolder folder;
  for (const auto& trainer : {expected.get(), first.get()}) {
    ASSERT_OK(trainer->Step(*data, Rows(0, kImageBatch)));
  }
  ASSERT_OK(first->BeginSave(folder.path().string(), {}));
  ASSERT_OK(first->FinishSave());
  ASSERT_OK(second->Restore(folder.path().string()));
  for (const auto& trainer : {expected.get(), second.get()}) {
    ASSERT_OK(trainer->Step(*data, Rows(kImageBatch, kImageBatch)));
  }
  EXPECT_EQ(second->ParametersHash().value(), expected->ParametersHash().value());
}

// Checkpoints hold float32, including averages.
TEST_P(ImageTraining, TakesUpWhatTheOtherPrecisionLeft) {
  const Precision other =
      GetParam() == Precision::kFloat32 ? Precision::kBfloat16 : Precision::kFloat32;
  const absl::Status has = stagecoach::testing::HasOnCpu(other);
  if (!has.ok()) GTEST_SKIP() << has.message();
  const auto data = SmallData(kImageBatch);
  const auto first = ImageTrainer(other, {2, "1f1b"}, Optimizer::AdamW());
  const auto second = TrainerAt({3, "zb-h1"}, Optimizer::AdamW());
  const TestFolder folder;
  ASSERT_OK(first->Step(*data, Rows(0, kImageBatch)));
  ASSERT_OK(first->Save(folder.path().string()));
  ASSERT_OK(second->Restore(folder.path().string()));
  EXPECT_EQ(second->ParametersHash().value(), first->ParametersHash().value());
  for (const auto& trainer : {first.get(), second.get()}) {
    ASSERT_OK(trainer->Step(*data, Rows(0, kImageBatch)));
  }
  EXPECT_NE(second->ParametersHash().value(), first->ParametersHash().value());
}

TEST_P(ImageTraining, MatchesPyTorch) { ExpectImagesToMatchPyTorch({.precision = GetParam()}); }

INSTANTIATE_TEST_SUITE_P(Precisions, ImageTraining,
                         ::testing::Values(Precision::kFloat32, Precision::kBfloat16),
                         [](const auto& test) { return PrecisionName(test.param); });

}  // namespace
}  // namespace stagecoach::engine
