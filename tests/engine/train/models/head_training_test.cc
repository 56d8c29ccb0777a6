// Models whose last layer computes the loss: how they are split, measured and planned.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/tokens/tokens.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/head.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/measured_profile.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::Each;

constexpr int64_t kHeadWords = 700;  // more than one tile of classes
constexpr int64_t kHeadContext = 11;
constexpr int kHeadMicroBatches = 12;  // every schedule takes this many on 2, 3 and 4 devices
constexpr int64_t kHeadMicroBatchRows = 3;
constexpr int64_t kHeadBatchRows = kHeadMicroBatches * kHeadMicroBatchRows;

// Returns a transformer of three blocks in eight layers.
Model WithLast(LayerFactory last) {
  const auto attention = [] {
    return Residual({LayerNorm(), Linear(24), Attention({.heads = 2}), Linear(8)});
  };
  return {.input = Shape{kHeadContext},
          .vocabulary = kHeadWords,
          .layers = {Embedding({.vocabulary = kHeadWords, .features = 8, .positions = true}),
                     attention(), Residual({LayerNorm(), Linear(16, Activation::kGelu), Linear(8)}),
                     attention(), Residual({LayerNorm(), Linear(8)}), attention(), LayerNorm(),
                     std::move(last)}};
}
Model HeadModel() { return WithLast(Head({.classes = kHeadWords, .deviation = 0.5F})); }
// Returns a model whose layers before the head use the shared scratch memory, in F too.
Model ScratchModel() {
  Model model = HeadModel();
  model.layers[4] =
      Residual({LayerNorm(), Linear(64, Activation::kGelu), Linear(8), Dropout(0.1F)});
  model.layers[6] = Residual({Linear(8), Dropout(0.1F)});
  return model;
}
// Returns a model whose head has the embedding's table.
Model TiedTokenModel() {
  Model model = HeadModel();
  model.ties = {{{0, "tokens"}, {7, "weight"}}};
  return model;
}

std::shared_ptr<const TokenDataset> HeadData(int64_t rows) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i <= rows * kHeadContext; ++i) {
    ids.push_back(static_cast<int32_t>(i * i % 997 % kHeadWords));
  }
  return TokenDataset::Create(TokenIds::Of(std::move(ids)).value(), kHeadContext, kHeadWords)
      .value();
}

struct HeadAnswer {
  std::vector<double> losses, norms;
  std::vector<int64_t> correct;
  double evaluation_loss = 0.0;
  int64_t evaluation_correct = 0;
  std::vector<float> outputs;
  std::string hash;

  friend bool operator==(const HeadAnswer&, const HeadAnswer&) = default;
};

struct HeadRun {
  int devices = 1;
  std::string schedule = "gpipe";
  int chunks = 0;
  int threads = 1;
  partition::Replication replication = {1, 4};
  float clip_norm = 0.0F;
};

HeadAnswer AnswerOfHead(const Model& model, const HeadRun& run) {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.clip_norm = run.clip_norm;
  const auto trainer = MakeTrainer(model,
                                   EvenPlan(model, run.devices, run.schedule, kHeadMicroBatches,
                                            kHeadMicroBatchRows, run.chunks, run.replication),
                                   {.optimizer = optimizer,
                                    .learning_rate = LearningRate::Constant(0.01F),
                                    .device = {.threads = run.threads}});
  const auto data = HeadData(2 * kHeadBatchRows);
  const auto test = HeadData(kHeadBatchRows + 5);  // the second batch is not whole
  HeadAnswer answer;
  for (int64_t step = 0; step < 2; ++step) {
    const StepResult result =
        trainer->Step(*data, Rows(step * kHeadBatchRows, kHeadBatchRows)).value();
    answer.losses.push_back(result.loss);
    answer.correct.push_back(result.correct);
    answer.norms.push_back(result.gradient_norm);
  }
  const Evaluation evaluation = trainer->Evaluate(*test).value();
  answer.evaluation_loss = evaluation.loss;
  answer.evaluation_correct = evaluation.correct;
  answer.outputs = trainer->Predict(*test).value();
  answer.hash = trainer->ParametersHash().value();
  const std::vector<DeviceReport> reports = trainer->Devices().value();
  for (const DeviceReport& device : reports) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
    EXPECT_EQ(device.measured_stash_bytes, device.predicted_stash_bytes) << device.device;
  }
  return answer;
}

// The partitions have fused passes and split ones, the head on a stage of its own or not, and its
// stage on any device.
TEST(HeadTraining, HasTheSameBitsOverAllPartitions) {
  const HeadAnswer expected = AnswerOfHead(HeadModel(), {});
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  std::vector<HeadRun> runs = {{.threads = 3},
                               {8, "1f1b"},
                               {3, "gpipe"},
                               {4, "interleaved"},
                               {4, "zb-h1"},
                               {2, "looped-bfs", 4},
                               {2, "zb-h2", 0, 2},
                               {1, "gpipe", 0, 2, {2, 4}},
                               {2, "1f1b", 0, 1, {4, 4}},
                               {2, "zb-v", 0, 1, {2, 4}},
                               {2, "1f1b", 0, 1, {2, 4, /*shards_optimizer=*/true}}};
  for (const char* const schedule : {"gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2",
                                     "zb-v", "v-half", "v-min", "dualpipe-v"}) {
    runs.push_back({2, schedule});
  }
  for (const HeadRun& run : runs) {
    EXPECT_TRUE(AnswerOfHead(HeadModel(), run) == expected)
        << run.devices << " devices, " << run.schedule << ", " << run.threads << " threads, "
        << run.replication.replicas << " replicas";
  }
}

TEST(HeadTraining, HasTheSameBitsTiedClippedAndBesideOtherScratch) {
  for (const Model& model : {HeadModel(), TiedTokenModel(), ScratchModel()}) {
    const HeadAnswer expected = AnswerOfHead(model, {.clip_norm = 0.05F});
    EXPECT_THAT(expected.norms, Each(::testing::Gt(0.05)));
    for (const HeadRun& run : {HeadRun{2, "1f1b"}, HeadRun{2, "zb-h1"}, HeadRun{8, "1f1b"}}) {
      HeadRun clipped = run;
      clipped.clip_norm = 0.05F;
      EXPECT_TRUE(AnswerOfHead(model, clipped) == expected) << run.devices << run.schedule;
    }
  }
}

// (rows, columns) -> (columns, rows)
std::vector<float> Turned(const std::vector<float>& values, size_t rows) {
  const size_t columns = values.size() / rows;
  std::vector<float> turned(values.size());
  for (size_t i = 0; i < values.size(); ++i) turned[i % columns * rows + i / columns] = values[i];
  return turned;
}

double MostApart(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() ? 0.0 : HUGE_VAL;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

// The kernel's tests bound its rounding; a fault between it and the trainer would be as large as
// the numbers themselves.
TEST(HeadTraining, IsALinearLayerWithItsLossUpToRounding) {
  const Model models[] = {HeadModel(),
                          WithLast(Linear(kHeadWords, Activation::kNone, 1.0F, false))};
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const Model& model : models) {
    trainers.push_back(MakeTrainer(
        model, EvenPlan(model, 2, "1f1b", kHeadMicroBatches, kHeadMicroBatchRows),
        {.optimizer = Optimizer::Sgd(0.0F), .learning_rate = LearningRate::Constant(0.5F)}));
  }
  const std::string weight = "layer 7: weight";
  const std::vector<float> before = trainers[0]->Parameter(weight).value();
  ASSERT_OK(trainers[1]->SetParameter(weight, Turned(before, kHeadWords)));
  const auto data = HeadData(kHeadBatchRows);
  std::vector<StepResult> steps;
  std::vector<Evaluation> evaluations;
  std::vector<std::vector<float>> outputs, tables;
  for (const auto& trainer : trainers) {
    evaluations.push_back(trainer->Evaluate(*data).value());
    outputs.push_back(trainer->Predict(*data).value());
    steps.push_back(trainer->Step(*data, Rows(0, kHeadBatchRows)).value());
    tables.push_back(trainer->Parameter("layer 0: tokens").value());
  }
  constexpr double kShare = 1e-5;
  EXPECT_NEAR(steps[0].loss, steps[1].loss, kShare * steps[1].loss);
  EXPECT_EQ(steps[0].correct, steps[1].correct);
  EXPECT_NEAR(evaluations[0].loss, evaluations[1].loss, kShare * evaluations[1].loss);
  EXPECT_EQ(evaluations[0].correct, evaluations[1].correct);
  EXPECT_LT(MostApart(outputs[0], outputs[1]), 1e-4);
  const std::vector<float> after = trainers[0]->Parameter(weight).value();
  const double step = MostApart(after, before);
  EXPECT_GT(step, 1e-3);
  EXPECT_LT(MostApart(after, Turned(trainers[1]->Parameter(weight).value(), 8)), 1e-4 * step);
  EXPECT_LT(MostApart(tables[0], tables[1]), 1e-6);
}

TEST(HeadTraining, PredictsUnderAPlanWithoutBackwardPasses) {
  const auto data = HeadData(kHeadBatchRows + 5);
  const auto trainer = MakeTrainer(
      HeadModel(), EvenPlan(HeadModel(), 2, "1f1b", kHeadMicroBatches, kHeadMicroBatchRows), {});
  const PlanOptions options = {
      .devices = 2, .predicts = true, .micro_batches = 4, .micro_batch_rows = kHeadMicroBatchRows};
  const auto predictor =
      Trainer::Create(PrepareRun(HeadModel(), options).value(), TrainerOptions{}).value();
  EXPECT_TRUE(predictor->Predict(*data).value() == trainer->Predict(*data).value());
  EXPECT_EQ(predictor->Evaluate(*data)->correct, trainer->Evaluate(*data)->correct);
  const std::vector<DeviceReport> reports = predictor->Devices().value();
  for (const DeviceReport& device : reports) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
  }
}

TEST(HeadTraining, ClassifiesSamplesOfOneAxisToo) {
  Model model = SmallModel();
  model.layers.back() = Head({.classes = kSmallClasses});
  const auto data = SmallData(kHeadBatchRows);
  std::vector<double> losses;
  for (const int devices : {1, 2}) {
    const auto trainer =
        MakeTrainer(model, EvenPlan(model, devices, "zb-h1", kHeadMicroBatches, 3), {});
    for (int step = 0; step < 3; ++step) {
      losses.push_back(trainer->Step(*data, Rows(0, kHeadBatchRows)).value().loss);
    }
  }
  EXPECT_LT(losses[2], losses[0]);
  EXPECT_EQ(std::vector<double>(losses.begin(), losses.begin() + 3),
            std::vector<double>(losses.begin() + 3, losses.end()));
}

TEST(HeadTraining, IsRefusedWhereItCannotComputeTheLoss) {
  const auto refused = [](const std::string& where) {
    return IsRefused(
        absl::StrCat(where, "head: computes the loss itself, so it must be the last layer"));
  };
  Model model = HeadModel();
  model.loss = MeanSquaredError();
  EXPECT_THAT(AnalyzeModel(model, {}), refused("layer 7: "));
  model = HeadModel();
  model.layers.push_back(Linear(kHeadWords));
  EXPECT_THAT(AnalyzeModel(model, {}), refused("layer 7: "));
  model = HeadModel();
  model.layers.back() = Residual({Head({.classes = 8})});
  EXPECT_THAT(AnalyzeModel(model, {}), refused("layer 0: "));
}

// The logits of all positions are never in memory at once, whatever the schedule, and neither is
// anything else that would grow faster than the context.
TEST(HeadTraining, PeakMemoryGrowsLinearlyWithTheContext) {
  constexpr int64_t kVocabulary = 5000;
  for (const char* const schedule : {"1f1b", "zb-h1"}) {
    std::vector<int64_t> peaks;
    for (const int64_t context : {256, 512, 1024, 2048}) {
      Model model = {.input = Shape{context}, .vocabulary = kVocabulary};
      model.layers = {Embedding({.vocabulary = kVocabulary, .features = 64, .positions = true}),
                      Residual({LayerNorm(), Linear(192), Attention({.heads = 2}), Linear(64)}),
                      LayerNorm(), Head({.classes = kVocabulary})};
      const PreparedRun run =
          PrepareRun(model, GivenPlan{.plan = EvenPlan(model, 2, schedule, 4, 1)}).value();
      peaks.push_back(run.compiled.ranks.back().peak_bytes());
    }
    const int64_t growth = peaks[1] - peaks[0];  // for 256 positions
    EXPECT_GT(growth, 0);
    EXPECT_LT(growth, 256 * kVocabulary * 4);
    EXPECT_EQ(peaks[2] - peaks[1], 2 * growth) << schedule;
    EXPECT_EQ(peaks[3] - peaks[2], 4 * growth) << schedule;
  }
}

// B has two products and W has two; a whole pass takes three.
TEST(HeadTraining, AWholeBackwardPassCostsLessThanItsHalves) {
  const auto last = [](const ModelProfile& profile) { return profile.layers.back(); };
  const partition::LayerCost analyzed = last(AnalyzeModel(HeadModel(), {}).value());
  EXPECT_EQ(analyzed.memory.output_bytes, 0);
  EXPECT_EQ(analyzed.forward_ns, 0.0);
  EXPECT_GT(analyzed.shared_backward_ns, 0.0);
  EXPECT_EQ(analyzed.flops, 3 * 2.0 * kHeadContext * 8 * kHeadWords);
  const partition::LayerCost measured = last(
      MeasureModel(HeadModel(), {.micro_batch_rows = 8}, {.repeats = 3, .devices = 1}).value());
  EXPECT_GT(measured.backward_input_ns, 0.0);
  EXPECT_GT(measured.backward_weight_ns, 0.0);
  EXPECT_LE(measured.shared_backward_ns, measured.backward_input_ns);
}

}  // namespace
}  // namespace stagecoach::engine
