// Layers that share a parameter, wherever their stages are.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::Not;

constexpr int kTiedMicroBatches = 12;
constexpr int64_t kTiedRows = 3;  // of a micro-batch
constexpr int64_t kTiedBatch = kTiedMicroBatches * kTiedRows;
constexpr char kFirst[] = "layer 1: weight", kSecond[] = "layer 6: weight";
constexpr char kBetween[] = "layer 3: weight", kLast[] = "layer 7: weight";

// Returns a model in which the second of each pair would start differently if it were not tied.
Model UntiedModel() {
  return {
      .input = Shape{kSmallFeatures},
      .layers = {Linear(24, Activation::kGelu), Linear(24, Activation::kGelu), LayerNorm(),
                 Linear(24), Residual({LayerNorm(), Linear(24, Activation::kRelu)}), LayerNorm(),
                 Linear(24, Activation::kGelu), Linear(24), Linear(kSmallClasses)}};
}

Model TiedModel() {
  Model model = UntiedModel();
  model.ties = {{{1, "weight"}, {6, "weight"}}, {{3, "weight"}, {7, "weight"}}};
  return model;
}

struct TiedRun {
  int devices = 1;
  std::string schedule = "gpipe";
  partition::Replication replication = {.gradient_blocks = 2};
  Optimizer optimizer = Optimizer::AdamW();
};

Optimizer Clipping() {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.clip_norm = 0.05F;
  return optimizer;
}

partition::Plan TiedPlan(const TiedRun& run) {
  return EvenPlan(TiedModel(), run.devices, run.schedule, kTiedMicroBatches, kTiedRows, 0,
                  run.replication);
}

std::unique_ptr<Trainer> TrainerOf(const TiedRun& run, const Model& model = TiedModel()) {
  return MakeTrainer(model, TiedPlan(run), {.optimizer = run.optimizer});
}

struct TiedAnswer {
  std::vector<double> losses, norms;
  std::string hash;

  friend bool operator==(const TiedAnswer&, const TiedAnswer&) = default;
};

void PrintTo(const TiedAnswer& answer, std::ostream* out) {
  *out << ::testing::PrintToString(answer.losses) << " " << ::testing::PrintToString(answer.norms)
       << " " << answer.hash;
}

TiedAnswer Train(Trainer& trainer, int steps) {
  const auto data = SmallData(4 * kTiedBatch);
  TiedAnswer answer;
  for (int i = 0; i < steps; ++i) {
    const int64_t first = trainer.steps() % 4 * kTiedBatch;
    const StepResult result = trainer.Step(*data, Rows(first, kTiedBatch)).value();
    answer.losses.push_back(result.loss);
    answer.norms.push_back(result.gradient_norm);
  }
  answer.hash = trainer.ParametersHash().value();
  return answer;
}

constexpr partition::Replication kSharded = {2, 2, /*shards_optimizer=*/true};

// Returns the runs; in the V of zb-v and dualpipe-v, the first of two tied layers may be on the
// rank of the second.
std::vector<TiedRun> TiedRuns() {
  std::vector<TiedRun> runs = {{1, "gpipe", {2, 2}}, {1, "gpipe", kSharded}};
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    for (const int devices : {2, 3, 4}) runs.push_back({devices, schedule});
    for (const int devices : {2, 3}) runs.push_back({devices, schedule, kSharded});
  }
  for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) runs.push_back({2, schedule, {2, 2}});
  return runs;
}

std::string NameOf(const TiedRun& run) {
  return absl::StrCat(run.schedule, " on ", run.devices, " of ", run.replication.replicas,
                      run.replication.shards_optimizer ? ", sharded" : "");
}

TEST(Ties, GiveTheSameBitsWhereverTheStagesAre) {
  for (const Optimizer& optimizer : {Optimizer::AdamW(), Clipping()}) {
    const TiedAnswer expected = Train(*TrainerOf({.optimizer = optimizer}), 3);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    for (TiedRun run : TiedRuns()) {
      run.optimizer = optimizer;
      const auto trainer = TrainerOf(run);
      EXPECT_EQ(Train(*trainer, 3), expected) << NameOf(run);
      const std::vector<DeviceReport> devices = trainer->Devices().value();
      for (const DeviceReport& device : devices) {
        EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << NameOf(run);
        EXPECT_EQ(device.measured_sent, device.predicted_sent) << NameOf(run);
      }
      EXPECT_EQ(trainer->Parameter(kFirst).value(), trainer->Parameter(kSecond).value());
      EXPECT_EQ(trainer->Parameter(kBetween).value(), trainer->Parameter(kLast).value());
    }
  }
}

// With SGD without momentum, a parameter changes by the sum of what the two would change by alone.
TEST(Ties, SumTheGradientsOfBoth) {
  const TiedRun run{.optimizer = Optimizer::Sgd(0.0F)};
  const auto apart = TrainerOf(run, UntiedModel());
  const auto tied = TrainerOf({.devices = 3, .optimizer = run.optimizer});
  const std::vector<float> start = tied->Parameter(kFirst).value();
  ASSERT_OK(apart->SetParameter(kSecond, start));
  ASSERT_OK(apart->SetParameter(kLast, apart->Parameter(kBetween).value()));
  EXPECT_EQ(Train(*tied, 1).losses, Train(*apart, 1).losses);
  const std::vector<float> first = apart->Parameter(kFirst).value();
  const std::vector<float> second = apart->Parameter(kSecond).value();
  const std::vector<float> both = tied->Parameter(kSecond).value();
  double largest = 0.0;
  for (size_t i = 0; i < start.size(); ++i) {
    const double by_first = static_cast<double>(first[i]) - static_cast<double>(start[i]);
    const double by_second = static_cast<double>(second[i]) - static_cast<double>(start[i]);
    const double expected = static_cast<double>(start[i]) + by_first + by_second;
    largest = std::max(largest, std::min(std::fabs(by_first), std::fabs(by_second)));
    // Each of the three updates rounds a value of that size once, and so does the sum of gradients.
    EXPECT_NEAR(both[i], expected, Gamma(4) * (std::fabs(expected) + std::fabs(start[i]))) << i;
  }
  EXPECT_GT(largest, 1e-5) << "both change it";
}

TEST(Ties, AreSavedOnceAndRestoredOnBoth) {
  const TestFolder folder;
  const std::string path = (folder.path() / "run").string();
  const std::vector<TiedRun> places = {
      {3, "1f1b"}, {2, "zb-v", kSharded}, {1, "gpipe"}, {3, "1f1b", kSharded}, {4, "zb-h1"}};
  const auto steps = static_cast<int>(places.size());
  const TiedAnswer expected = Train(*TrainerOf({.optimizer = Clipping()}), steps);
  TiedAnswer answer;
  for (TiedRun place : places) {
    place.optimizer = Clipping();
    const auto trainer = TrainerOf(place);
    if (!answer.losses.empty()) {
      ASSERT_OK(trainer->Restore(path));
    }
    const TiedAnswer step = Train(*trainer, 1);
    answer.losses.push_back(step.losses.front());
    answer.norms.push_back(step.norms.front());
    answer.hash = step.hash;
    ASSERT_OK(trainer->Save(path));
  }
  EXPECT_EQ(answer, expected);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    // Layers 6 and 7 have a bias of their own.
    if (name != "layer-00006.safetensors") continue;
    EXPECT_LT(std::filesystem::file_size(entry.path()), 24 * 24 * 4) << "without the weight";
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(Ties, CountOnce) {
  const ModelProfile apart = AnalyzeModel(UntiedModel(), {}).value();
  const ModelProfile tied = AnalyzeModel(TiedModel(), {}).value();
  EXPECT_EQ(tied.layers[1].parameters, apart.layers[1].parameters);
  EXPECT_EQ(tied.layers[6].parameters, apart.layers[6].parameters - 24 * 24);
  EXPECT_EQ(tied.layers[6].memory.parameter_bytes, apart.layers[6].memory.parameter_bytes);
}

TEST(Ties, AValueIsSetOnBoth) {
  const auto trainer = TrainerOf({.devices = 3});
  const std::string before = trainer->ParametersHash().value();
  const std::vector<float> values(24 * 24, 0.25F);
  ASSERT_OK(trainer->SetParameter(kSecond, values));
  EXPECT_EQ(trainer->Parameter(kFirst).value(), values);
  EXPECT_EQ(trainer->Parameter(kSecond).value(), values);
  EXPECT_THAT(trainer->ParametersHash().value(), Not(before));
}

TEST(Ties, ThatDoNotFitAreRefused) {
  const auto refused = [](std::vector<ParameterTie> ties) {
    Model model = UntiedModel();
    model.ties = std::move(ties);
    return AnalyzeModel(model, {}).status();
  };
  using absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused({{{0, "weight"}, {1, "weight"}}}), IsRefused("shapes [20, 24] and [24, 24]"));
  EXPECT_THAT(refused({{{6, "weight"}, {1, "weight"}}}), IsRefused("of an earlier layer"));
  EXPECT_THAT(refused({{{1, "weight"}, {6, "weight"}}, {{1, "weight"}, {7, "weight"}}}),
              IsRefused("tied already"));
  EXPECT_THAT(refused({{{1, "weight"}, {6, "wait"}}}),
              StatusIs(absl::StatusCode::kNotFound, "no parameter \"layer 6: wait\""));
}

}  // namespace
}  // namespace stagecoach::engine
