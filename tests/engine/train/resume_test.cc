// A run saved anywhere resumes anywhere, with the bits of one that was never stopped.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/small_save.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kMicroBatches = 12;  // every schedule here takes this many
constexpr int64_t kRowsOfRun = 7;  // of a micro-batch
constexpr int64_t kBatchOfRun = kMicroBatches * kRowsOfRun;
constexpr int64_t kStepsPerEpoch = 3;

struct Place {
  int devices = 1;
  std::string schedule = "gpipe";
  partition::Replication replication = {.gradient_blocks = 2};
  Precision precision = Precision::kFloat32;
};

void PrintTo(const Place& place, std::ostream* out) {
  *out << place.devices << " devices, " << place.schedule << ", " << place.replication.replicas
       << " replicas, " << place.replication.gradient_blocks << " blocks"
       << (place.replication.shards_optimizer ? ", sharded" : "");
}

std::unique_ptr<Trainer> TrainerAt(
    const Place& place, const Optimizer& optimizer,
    const LearningRate& learning_rate = LearningRate::WarmupCosine(0.05F, 2, 10)) {
  return MakeTrainer(SmallModel(),
                     EvenPlan(SmallModel(), place.devices, place.schedule, kMicroBatches,
                              kRowsOfRun, 0, place.replication),
                     {.optimizer = optimizer,
                      .learning_rate = learning_rate,
                      .device = {.precision = place.precision}});
}

TrainTest DataOfRun() { return {SmallData(kStepsPerEpoch * kBatchOfRun + 5), SmallData(40)}; }

// Everything by which a run is judged in the end.
struct RunAnswer {
  std::string parameters, losses;
  std::vector<double> epochs;  // loss, accuracy and test loss of the epochs that the run completed

  friend bool operator==(const RunAnswer&, const RunAnswer&) = default;
};

// Trains until `stop_at` steps are done, saves there, and resumes from what `folder` has, if it has
// anything.
RunAnswer TrainAt(const Place& place, const Optimizer& optimizer, const std::string& folder,
                  int64_t stop_at, RunAnswer before = {}) {
  const auto trainer = TrainerAt(place, optimizer);
  FitOptions options = {.epochs = 4, .checkpoints = {.folder = folder}};
  if (std::filesystem::exists(folder)) {
    options.start = trainer->Restore(folder).value().manifest.position;
  }
  options.stop = [&] { return trainer->steps() >= stop_at; };
  options.on_epoch = [&](const EpochResult& row) {
    before.epochs.insert(before.epochs.end(), {row.loss, row.train_accuracy, row.test_loss});
  };
  const FitResult fit = Fit(*trainer, DataOfRun(), options).value();
  EXPECT_OK(fit.last_save);
  before.parameters = trainer->ParametersHash().value();
  before.losses = fit.step_losses_hash;
  return before;
}

class Resume : public ::testing::TestWithParam<Optimizer> {
 protected:
  std::string Folder(const std::string& name) const { return (folder_.path() / name).string(); }

  const TestFolder folder_;
};

TEST_P(Resume, OnOtherStagesReplicasAndSchedulesGivesTheSameBits) {
  const std::vector<Place> of_two_blocks = {
      {4, "gpipe"},
      {3, "1f1b"},
      {1, "1f1b"},
      {2, "zb-v", {2, 2}},
      {2, "1f1b", {2, 2, /*shards_optimizer=*/true}},
      {4, "interleaved"},
      {1, "gpipe", {2, 2, /*shards_optimizer=*/true}},
      {2, "zb-h1"},
  };
  const std::vector<Place> of_six_blocks = {
      {1, "1f1b", {3, 6}},  {2, "1f1b", {2, 6, /*shards_optimizer=*/true}}, {1, "gpipe", {6, 6}},
      {3, "gpipe", {1, 6}}, {1, "1f1b", {3, 6, /*shards_optimizer=*/true}},
  };
  for (const std::vector<Place>& places : {of_two_blocks, of_six_blocks}) {
    const int blocks = places.front().replication.gradient_blocks;
    const Place whole = {.replication = {.gradient_blocks = blocks}};
    const std::string folder = Folder(absl::StrCat("pieces", blocks));
    const RunAnswer expected =
        TrainAt(whole, GetParam(), Folder(absl::StrCat("whole", blocks)), 1000);
    RunAnswer answer;
    // The run stops within epochs, before an evaluation (6 and 9 steps), and after the last step.
    int64_t stop_at = 1;
    for (const Place& place : places) {
      SCOPED_TRACE(::testing::PrintToString(place));
      answer = TrainAt(place, GetParam(), folder, stop_at, answer);
      stop_at += stop_at == 1 ? 1 : 2;
    }
    answer = TrainAt(whole, GetParam(), folder, 1000, answer);
    EXPECT_EQ(answer, expected) << blocks << " blocks";
  }
}

TEST_P(Resume, EveryPlanWritesTheSameFiles) {
  std::map<std::string, std::string> expected;
  for (const Place& place :
       {Place{}, Place{4, "1f1b"}, Place{2, "zb-v", {2, 2, true}}, Place{3, "gpipe", {2, 2}}}) {
    SCOPED_TRACE(::testing::PrintToString(place));
    const auto trainer = TrainerAt(place, GetParam());
    ASSERT_OK(trainer->Step(*SmallData(kBatchOfRun), Rows(0, kBatchOfRun)));
    ASSERT_OK_AND_ASSIGN(const std::string path,
                         trainer->Save(Folder(::testing::PrintToString(place))));
    auto files = FilesIn(path);
    EXPECT_EQ(files.erase("manifest.json"), 1);
    EXPECT_EQ(files.erase("manifest.json.xxh128"), 1);
    if (expected.empty()) expected = files;
    EXPECT_TRUE(files == expected);
  }
  EXPECT_THAT(expected, ::testing::SizeIs(::testing::Gt(8)));
}

// Evaluations are by the averages, so all that a run is judged by depends on these, too.
Optimizer AdamWWithAverages() {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.ema_decay = 0.5F;
  return optimizer;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Resume,
                         ::testing::Values(Optimizer::AdamW(), Optimizer::Sgd(),
                                           AdamWWithAverages()),
                         [](const auto& optimizer) {
                           const bool is_sgd = optimizer.param.kind == Optimizer::Kind::kSgd;
                           return absl::StrCat(is_sgd ? "Sgd" : "AdamW",
                                               optimizer.param.has_ema() ? "WithAverages" : "");
                         });

// Master parameters are float32: a run in bf16 resumes from one in fp32 and vice versa, and
// continues with its own bits.
TEST(ResumeTest, GoesOnWithTheNextStepOfALearningRateThatIsAFunction) {
  const auto data = SmallData(kBatchOfRun);
  std::vector<int64_t> asked;
  const LearningRate rate = LearningRate::Function([&](int64_t step) {
    asked.push_back(step);
    return 0.02F / static_cast<float>(step);
  });
  const auto whole = TrainerAt({}, Optimizer::AdamW(), rate);
  for (int step = 0; step < 4; ++step) ASSERT_OK(whole->Step(*data, Rows(0, kBatchOfRun)));
  asked.clear();

  const TestFolder folder;
  const auto first = TrainerAt({}, Optimizer::AdamW(), rate);
  for (int step = 0; step < 2; ++step) ASSERT_OK(first->Step(*data, Rows(0, kBatchOfRun)));
  ASSERT_OK(first->Save(folder.path().string()));
  const auto second = TrainerAt({2, "1f1b"}, Optimizer::AdamW(), rate);
  ASSERT_OK(second->Restore(folder.path().string()));
  ASSERT_OK(second->Step(*data, Rows(0, kBatchOfRun)));
  ASSERT_OK_AND_ASSIGN(const StepResult last, second->Step(*data, Rows(0, kBatchOfRun)));
  EXPECT_THAT(asked, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(last.learning_rate, 0.005F);
  EXPECT_EQ(second->ParametersHash().value(), whole->ParametersHash().value());
}

TEST(ResumeTest, InAnotherPrecisionHasTheSameParameters) {
  const absl::Status has = stagecoach::testing::HasOnCpu(Precision::kBfloat16);
  if (!has.ok()) GTEST_SKIP() << has.message();
  const Place rounded = {2, "1f1b", {.gradient_blocks = 2}, Precision::kBfloat16};
  const Place other_rounded = {3, "zb-h1", {.gradient_blocks = 2}, Precision::kBfloat16};
  const auto step = [](Trainer& trainer) {
    EXPECT_OK(trainer.Step(*SmallData(kBatchOfRun), Rows(0, kBatchOfRun)));
    return trainer.ParametersHash().value();
  };
  for (const auto& [from, to] : {std::pair(Place{}, rounded), std::pair(rounded, Place{}),
                                 std::pair(rounded, other_rounded)}) {
    SCOPED_TRACE(absl::StrCat(PrecisionName(from.precision), " to ", PrecisionName(to.precision)));
    const TestFolder folder;
    const auto first = TrainerAt(from, Optimizer::AdamW());
    const auto second = TrainerAt(to, Optimizer::AdamW());
    const std::string hash = step(*first);
    ASSERT_OK(first->Save(folder.path().string()));
    ASSERT_OK(second->Restore(folder.path().string()));
    EXPECT_EQ(second->ParametersHash().value(), hash);
    EXPECT_EQ(step(*second) == step(*first), from.precision == to.precision);
  }
}

class Saved : public ::testing::Test {
 protected:
  // Saves two checkpoints, after one and two steps.
  void SetUp() override {
    const auto trainer = TrainerAt({2, "1f1b"}, Optimizer::AdamW());
    for (int step = 0; step < 2; ++step) {
      ASSERT_OK(trainer->Step(*SmallData(kBatchOfRun), Rows(0, kBatchOfRun)));
      ASSERT_OK(trainer->Save(folder_));
      hashes_.push_back(trainer->ParametersHash().value());
    }
  }
  std::string File(int step, const std::string& name) const {
    return absl::StrCat(folder_, "/", CheckpointName(step), "/", name);
  }
  static void Flip(const std::string& path, int64_t byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(byte);
    const int value = file.get();
    file.seekp(byte);
    file.put(static_cast<char>(value ^ 0x40));
  }

  const TestFolder test_folder_;
  const std::string folder_ = (test_folder_.path() / "run").string();
  std::vector<std::string> hashes_;
};

TEST_F(Saved, GoesOnFromTheNewest) {
  const auto trainer = TrainerAt({3, "gpipe"}, Optimizer::AdamW());
  ASSERT_OK_AND_ASSIGN(const RestoredCheckpoint restored, trainer->Restore(folder_));
  EXPECT_EQ(restored.path, absl::StrCat(folder_, "/step-00000002"));
  EXPECT_THAT(restored.passed_over, IsEmpty());
  EXPECT_EQ(trainer->steps(), 2);
  EXPECT_EQ(restored.manifest.samples, 2 * kBatchOfRun);
  EXPECT_EQ(trainer->ParametersHash().value(), hashes_[1]);
}

TEST_F(Saved, GoesOnFromOneThatIsNamed) {
  const auto trainer = TrainerAt({3, "gpipe"}, Optimizer::AdamW());
  ASSERT_OK(trainer->Restore(absl::StrCat(folder_, "/step-00000001")));
  EXPECT_EQ(trainer->steps(), 1);
  EXPECT_EQ(trainer->ParametersHash().value(), hashes_[0]);
}

TEST_F(Saved, PassesOverOnesThatAreDamagedAndSaysWhy) {
  Flip(File(2, "layer-00007.optimizer.safetensors"), 700);
  const auto trainer = TrainerAt({2, "gpipe"}, Optimizer::AdamW());
  ASSERT_OK_AND_ASSIGN(const RestoredCheckpoint restored, trainer->Restore(folder_));
  EXPECT_EQ(trainer->steps(), 1);
  EXPECT_EQ(trainer->ParametersHash().value(), hashes_[0]);
  EXPECT_THAT(restored.passed_over,
              ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                   AllOf(HasSubstr("step-00000002/layer-00007.optimizer"),
                                         HasSubstr("tensor \"layer 7: ")))));
  Flip(File(1, "manifest.json"), 3);
  EXPECT_THAT(trainer->Restore(folder_),
              StatusIs(absl::StatusCode::kDataLoss, "none of the 2 checkpoints"));
}

TEST_F(Saved, IsRefusedByAnotherModelOrOptimizer) {
  EXPECT_THAT(TrainerAt({1, "gpipe"}, Optimizer::Sgd())->Restore(folder_),
              StatusIs(absl::StatusCode::kFailedPrecondition, "was trained with adamw"));
  Model model = SmallModel();
  model.layers.back() = Linear(kSmallClasses + 1);
  EXPECT_THAT(MakeTrainer(model, EvenPlan(model, 1, "gpipe", kMicroBatches, kRowsOfRun), {})
                  ->Restore(folder_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("another model"), HasSubstr("layer 7: weight"))));
}

TEST(SetParameter, GivesAllReplicasTheValues) {
  const auto trainer = TrainerAt({2, "1f1b", {2, 2, true}}, Optimizer::AdamW());
  ASSERT_OK_AND_ASSIGN(std::vector<float> values, trainer->Parameter("layer 7: weight"));
  for (float& value : values) value += 0.5F;
  ASSERT_OK(trainer->SetParameter("layer 7: weight", values));
  EXPECT_EQ(trainer->Parameter("layer 7: weight").value(), values);
  EXPECT_OK(trainer->ParametersHash());  // DataLoss if replicas differed
  values.pop_back();
  EXPECT_THAT(trainer->SetParameter("layer 7: weight", values), IsRefused("layer 7: weight has"));
  EXPECT_THAT(trainer->SetParameter("layer 77", values), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(Saved, ThereIsNoneInAnEmptyFolder) {
  const auto trainer = TrainerAt({1, "gpipe"}, Optimizer::AdamW());
  EXPECT_THAT(trainer->Restore(test_folder_.path().string()),
              StatusIs(absl::StatusCode::kNotFound, "no checkpoint in"));
  EXPECT_EQ(trainer->steps(), 0);
}

}  // namespace
}  // namespace stagecoach::engine
