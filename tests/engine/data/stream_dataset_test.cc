#include "engine/data/stream_dataset.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/nn/layers/linear.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

// Sample i has the input (i, 2 i) and the label i % 2, and counts how it was come by.
class Counting final : public SampleGenerator {
 public:
  struct Log {
    std::vector<int64_t> seeks;
    int64_t made = 0;
    int64_t fails_at = -1;
  };
  explicit Counting(std::shared_ptr<Log> log) : log_(std::move(log)) {}

  SampleSpec spec() const override {
    return {.inputs = {{.name = "x", .shape = Shape{2}}}, .target = TargetSpec::ClassLabel(2)};
  }
  absl::Status Seek(int64_t position) override {
    log_->seeks.push_back(position);
    next_ = position;
    return absl::OkStatus();
  }
  absl::Status Next(absl::Span<const absl::Span<std::byte>> inputs,
                    absl::Span<std::byte> target) override {
    if (next_ == log_->fails_at) return absl::DataLossError("the source is gone");
    const float values[] = {static_cast<float>(next_), 2 * static_cast<float>(next_)};
    const auto label = static_cast<int32_t>(next_ % 2);
    std::memcpy(inputs[0].data(), values, sizeof(values));
    std::memcpy(target.data(), &label, sizeof(label));
    ++next_;
    ++log_->made;
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Log> log_;
  int64_t next_ = -1;
};

std::vector<float> InputOf(const Dataset& data, int64_t row) {
  std::vector<float> values(2);
  data.CopyNumbers(0, row, absl::MakeSpan(values));
  return values;
}

TEST(StreamDataset, MakesEachSampleOnceInOrder) {
  const auto log = std::make_shared<Counting::Log>();
  const auto data = StreamOf(std::make_unique<Counting>(log));
  EXPECT_TRUE(data->is_endless());
  for (int64_t row = 0; row < 1000; ++row) {
    EXPECT_THAT(InputOf(*data, row), ElementsAre(row, 2 * row));
    EXPECT_EQ(data->label(row), row % 2);
  }
  EXPECT_EQ(log->made, 1000);
  EXPECT_THAT(log->seeks, ElementsAre(0));
}

TEST(StreamDataset, BeginsAnywhereAndMakesWhatIsAskedForAgain) {
  const auto log = std::make_shared<Counting::Log>();
  const auto data = StreamOf(std::make_unique<Counting>(log));
  EXPECT_THAT(InputOf(*data, 1'000'000), ElementsAre(1e6F, 2e6F));
  EXPECT_THAT(InputOf(*data, 5), ElementsAre(5, 10));
  EXPECT_THAT(log->seeks, ElementsAre(1'000'000, 5));
  EXPECT_EQ(log->made, 2);
  // One stage is far ahead of another: soon as many are kept as they are apart.
  int64_t made = 0;
  for (int64_t row = 0; row < 2000; ++row) {
    if (row == 1000) made = log->made;
    EXPECT_THAT(InputOf(*data, row + 300), ElementsAre(row + 300, 2 * row + 600));
    EXPECT_EQ(data->label(row), row % 2);
  }
  EXPECT_EQ(log->made, made + 1000);
}

TEST(StreamDataset, MayBeMadeByAFunction) {
  const auto data =
      StreamOf({.inputs = {{.name = "x", .shape = Shape{2}}}, .target = TargetSpec::ClassLabel(2)},
               [](int64_t position, absl::Span<const absl::Span<std::byte>> inputs,
                  absl::Span<std::byte> target) -> absl::Status {
                 if (position == 99) return absl::DataLossError("the source is gone");
                 const float values[] = {static_cast<float>(position), -1.0F};
                 const auto label = static_cast<int32_t>(position % 2);
                 std::memcpy(inputs[0].data(), values, sizeof(values));
                 std::memcpy(target.data(), &label, sizeof(label));
                 return absl::OkStatus();
               });
  EXPECT_TRUE(data->is_endless());
  for (const int64_t row : {0, 1, 2, 1, 40, 3}) {
    EXPECT_THAT(InputOf(*data, row), ElementsAre(static_cast<float>(row), -1.0F));
    EXPECT_EQ(data->label(row), row % 2);
  }
  ASSERT_OK(data->ReadStatus());
  InputOf(*data, 99);
  EXPECT_THAT(data->ReadStatus(), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(StreamDataset, AFailureIsAnErrorOfReading) {
  const auto log = std::make_shared<Counting::Log>();
  log->fails_at = 3;
  const auto data = StreamOf(std::make_unique<Counting>(log));
  EXPECT_THAT(InputOf(*data, 2), ElementsAre(2, 4));
  EXPECT_OK(data->ReadStatus());
  EXPECT_THAT(InputOf(*data, 3), ElementsAre(0, 0));
  EXPECT_THAT(data->ReadStatus(),
              StatusIs(absl::StatusCode::kDataLoss, "sample 3 of the stream: the source is gone"));
}

TrainTest Streamed(const std::shared_ptr<Counting::Log>& log) {
  const auto test = StreamOf(std::make_unique<Counting>(std::make_shared<Counting::Log>()));
  return {.train = StreamOf(std::make_unique<Counting>(log)), .test = Subset(test, 32).value()};
}

std::unique_ptr<Trainer> StreamTrainer(int devices, int replicas = 1) {
  const Model model{.input = Shape{2}, .layers = {Linear(8), Linear(2)}};
  const auto run = PrepareRun(model, {.devices = devices,
                                      .replication = {.replicas = replicas, .gradient_blocks = 2},
                                      .micro_batches = 4,
                                      .micro_batch_rows = 4});
  EXPECT_OK(run);
  auto trainer = Trainer::Create(*run, {.learning_rate = LearningRate::Constant(1e-4F)});
  EXPECT_OK(trainer);
  return *std::move(trainer);
}

TEST(StreamDataset, TrainsTheSameBitsUnderEveryPartitionAndWhenItIsResumed) {
  const auto log = std::make_shared<Counting::Log>();
  const auto whole = StreamTrainer(1);
  ASSERT_OK_AND_ASSIGN(const FitResult expected, Fit(*whole, Streamed(log), {.steps = 12}));
  EXPECT_EQ(expected.steps, 12);
  EXPECT_GE(log->made, 12 * 16);
  for (const int replicas : {1, 2}) {
    const auto two = StreamTrainer(2, replicas);
    ASSERT_OK_AND_ASSIGN(const FitResult fit, Fit(*two, Streamed(log), {.steps = 12}));
    EXPECT_EQ(fit.step_losses_hash, expected.step_losses_hash);
    EXPECT_EQ(two->ParametersHash().value(), whole->ParametersHash().value());
  }

  const testing::TestFolder folder;
  const std::string path = folder.path() / "run";
  const auto first = StreamTrainer(2);
  ASSERT_OK(Fit(*first, Streamed(log), {.steps = 5, .checkpoints = {.folder = path}}));
  const auto second = StreamTrainer(2);
  ASSERT_OK_AND_ASSIGN(const RestoredCheckpoint restored, second->Restore(path));
  const auto resumed = std::make_shared<Counting::Log>();
  ASSERT_OK_AND_ASSIGN(
      const FitResult fit,
      Fit(*second, Streamed(resumed), {.steps = 12, .start = restored.manifest.position}));
  EXPECT_EQ(fit.step_losses_hash, expected.step_losses_hash);
  EXPECT_EQ(second->ParametersHash().value(), whole->ParametersHash().value());
  EXPECT_THAT(resumed->seeks, Each(Ge(5 * 16)));  // nothing that was trained before
}

TEST(StreamDataset, NeedsANumberOfStepsAndTestDataWithAnEnd) {
  const auto trainer = StreamTrainer(1);
  TrainTest data = Streamed(std::make_shared<Counting::Log>());
  EXPECT_THAT(Fit(*trainer, data, {.epochs = 1}), IsRefused("have no end: say how many steps"));
  data.test = data.train;
  EXPECT_THAT(Fit(*trainer, data, {.steps = 1}), IsRefused("the test data have no end"));
}

}  // namespace
}  // namespace stagecoach::engine
