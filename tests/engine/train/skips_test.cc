// Layers that read an earlier layer's output, wherever the stages in between are.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/skip.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/refusals.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::Refusal;

constexpr int kSkipMicroBatches = 12;
constexpr int64_t kSkipRows = 3;  // of a micro-batch
constexpr int64_t kSkipBatch = kSkipMicroBatches * kSkipRows;

// Returns a U-shaped model with two nested skips, one of a residual sum that would be left to the
// next layer, and a third that crosses one of them and begins where the outer one does. Layers 2
// and 7 share a weight.
Model UShapedModel() {
  return {.input = Shape{kSmallFeatures},
          .layers = {Linear(25, Activation::kGelu),                           // 0
                     Linear(24),                                              // 1
                     Residual({LayerNorm(), Linear(24, Activation::kRelu)}),  // 2
                     Residual({LayerNorm(), Linear(24, Activation::kGelu)}),  // 3
                     Linear(12, Activation::kRelu),                           // 4
                     Linear(24), AddSkip(),                                   // 5, 6
                     Residual({LayerNorm(), Linear(24, Activation::kRelu)}),  // 7
                     ConcatSkip(), Linear(25), AddSkip(), Dropout(0.125F),    // 8 to 11
                     Residual({LayerNorm(), Linear(25)}), Linear(kSmallClasses)},
          .ties = {{{2, "1.weight"}, {7, "1.weight"}}},
          .skips = {{3, 6}, {0, 8}, {0, 10}}};
}

struct SkipRun {
  int devices = 1;
  std::string schedule = "gpipe";
  partition::Replication replication = {.gradient_blocks = 2};
};

std::unique_ptr<Trainer> SkippingTrainer(const SkipRun& run, const Model& model = UShapedModel(),
                                         std::vector<int> recomputed = {}) {
  partition::Plan plan =
      EvenPlan(model, run.devices, run.schedule, kSkipMicroBatches, kSkipRows, 0, run.replication);
  plan.recomputed = std::move(recomputed);
  return MakeTrainer(model, plan, {.optimizer = Optimizer::AdamW()});
}

struct SkipAnswer {
  std::vector<double> losses, norms;
  std::string hash;

  friend bool operator==(const SkipAnswer&, const SkipAnswer&) = default;
};

SkipAnswer AnswerOfSteps(Trainer& trainer, int steps) {
  const auto data = SmallData(4 * kSkipBatch);
  SkipAnswer answer;
  for (int i = 0; i < steps; ++i) {
    const int64_t first = trainer.steps() % 4 * kSkipBatch;
    const StepResult result = trainer.Step(*data, Rows(first, kSkipBatch)).value();
    answer.losses.push_back(result.loss);
    answer.norms.push_back(result.gradient_norm);
  }
  answer.losses.push_back(trainer.Evaluate(*data).value().loss);
  answer.hash = trainer.ParametersHash().value();
  return answer;
}

void ExpectPredictedBytes(Trainer& trainer) {
  const std::vector<DeviceReport> devices = trainer.Devices().value();
  for (const DeviceReport& device : devices) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
    EXPECT_EQ(device.measured_sent, device.predicted_sent);
  }
}

TEST(SkipsAcrossStages, GiveTheSameBitsWhereverTheStagesAre) {
  const SkipAnswer expected = AnswerOfSteps(*SkippingTrainer({}), 3);
  EXPECT_LT(expected.losses[2], expected.losses[0]);
  std::vector<SkipRun> runs;
  for (const int devices : {2, 3, 4, 5}) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
      if (devices < 5 || absl::string_view(schedule) != "interleaved") {
        runs.push_back({devices, schedule});
      }
    }
  }
  runs.push_back({14, "1f1b"});
  runs.push_back({1, "gpipe", {2, 2}});
  for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) runs.push_back({2, schedule, {2, 2}});
  for (const SkipRun& run : runs) {
    SCOPED_TRACE(absl::StrCat(run.schedule, " on ", run.devices, " of ", run.replication.replicas));
    const auto trainer = SkippingTrainer(run);
    EXPECT_TRUE(AnswerOfSteps(*trainer, 3) == expected);
    ExpectPredictedBytes(*trainer);
  }
}

TEST(SkipsAcrossStages, RecomputingOtherLayersChangesNoBit) {
  const SkipAnswer expected = AnswerOfSteps(*SkippingTrainer({}), 2);
  for (const SkipRun& run : {SkipRun{}, SkipRun{3, "1f1b"}, SkipRun{3, "zb-h1"}}) {
    SCOPED_TRACE(run.schedule);
    const auto trainer = SkippingTrainer(run, UShapedModel(), {2, 3, 7, 12});
    EXPECT_TRUE(AnswerOfSteps(*trainer, 2) == expected);
    ExpectPredictedBytes(*trainer);
  }
}

// The skips passed on are a micro-batch of three samples of 24 and of 25 numbers.
TEST(SkipsAcrossStages, AreInThePlan) {
  const ModelProfile profile =
      AnalyzeModel(UShapedModel(), {.micro_batch_rows = kSkipRows}).value();
  const auto memory = [&](size_t layer) { return profile.layers[layer].memory; };
  const int64_t of_25 = partition::AlignTensor(kSkipRows * 25 * 4);
  const int64_t of_24 = partition::AlignTensor(kSkipRows * 24 * 4);
  // All but the last of a bundle are rounded up.
  EXPECT_EQ(memory(0).output_bytes + memory(0).passing_bytes, 2 * of_25 + kSkipRows * 25 * 4);
  EXPECT_EQ(memory(0).skip_area_bytes, 2 * of_25);
  EXPECT_EQ(memory(3).output_bytes + memory(3).passing_bytes,
            of_24 + 2 * of_25 + kSkipRows * 24 * 4);
  EXPECT_EQ(memory(3).skip_area_bytes, 2 * of_25 + of_24);
  EXPECT_EQ(memory(4).input_bytes, memory(3).output_bytes + memory(3).passing_bytes);
  EXPECT_EQ(memory(9).passing_bytes, of_25);
  EXPECT_EQ(memory(10).passing_bytes, 0);
  for (const size_t layer : {6u, 8u, 10u}) {
    EXPECT_FALSE(profile.layers[layer].recompute_stash_bytes.has_value());
  }
}

TEST(SkipsAcrossStages, ThatDoNotFitAreRefused) {
  const Refusal<std::vector<Skip>> refusals[] = {
      {{{5, 6}}, "is given anyway"},
      {{{6, 3}}, "layers being 0 to 13"},
      {{{3, 14}}, "from layer 3 to layer 14"},
      {{{-1, 6}}, "from layer -1"},
      {{{2, 6}, {3, 6}}, "reads another skip already"},
      {{}, "layer 6: add skip"},
      {{{3, 7}}, "layer 6: add skip"},
      {{{3, 6}, {0, 7}}, "takes nothing besides its input"},
      {{{0, 6}}, "shapes must be equal"},
  };
  const auto analyze = [](const std::vector<Skip>& skips) {
    Model model = UShapedModel();
    model.skips = skips;
    return AnalyzeModel(model, {});
  };
  ExpectRefusals(analyze, refusals);
}

}  // namespace
}  // namespace stagecoach::engine
