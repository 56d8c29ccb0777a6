// Runs on tokens, from the data to the loss: how they are fed, split and measured.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/tokens/tokens.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/fit.h"
#include "engine/train/measured_profile.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::IsRefused;

constexpr int64_t kWords = 11;  // vocabulary size
constexpr int64_t kContext = 6;
constexpr int kTokenMicroBatches = 4;
constexpr int64_t kTokenMicroBatchRows = 3;
constexpr int64_t kTokenBatchRows = kTokenMicroBatches * kTokenMicroBatchRows;

LayerFactory Table(int64_t width) {
  return Embedding({.vocabulary = kWords, .features = width, .token_deviation = 0.5F});
}

// Returns a transformer of one block, whose two halves may be on different stages.
Model TokenModel() {
  return {.input = Shape{kContext},
          .vocabulary = kWords,
          .layers = {Embedding({.vocabulary = kWords, .features = 8, .positions = true}),
                     Residual({LayerNorm(), Linear(24), Attention({.heads = 2}), Linear(8)}),
                     Residual({LayerNorm(), Linear(16, Activation::kGelu), Linear(8)}),
                     Linear(kWords)}};
}

// Returns a model whose outputs are rows of the table.
Model TableModel() {
  return {.input = Shape{kContext}, .vocabulary = kWords, .layers = {Table(kWords)}};
}

// Returns ids whose order cannot be told from their place in a row.
std::vector<int32_t> MixedIds(int64_t rows) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i <= rows * kContext; ++i) {
    ids.push_back(static_cast<int32_t>(i * i % 23 % kWords));
  }
  return ids;
}

std::shared_ptr<const TokenDataset> TokensOf(std::vector<int32_t> ids, int64_t context = kContext,
                                             int64_t vocabulary = kWords) {
  return TokenDataset::Create(TokenIds::Of(std::move(ids)).value(), context, vocabulary).value();
}

partition::Plan TokenPlan(const Model& model, int devices, const std::string& schedule) {
  return EvenPlan(model, devices, schedule, kTokenMicroBatches, kTokenMicroBatchRows);
}

std::unique_ptr<Trainer> TableTrainer(float learning_rate) {
  return MakeTrainer(
      TableModel(), TokenPlan(TableModel(), 1, "gpipe"),
      {.optimizer = Optimizer::Sgd(0.0F), .learning_rate = LearningRate::Constant(learning_rate)});
}

struct TokenAnswer {
  std::vector<double> losses;
  std::vector<int64_t> correct;
  double evaluation_loss = 0.0;
  std::vector<float> outputs;
  std::string hash;

  friend bool operator==(const TokenAnswer&, const TokenAnswer&) = default;
};

TokenAnswer TokenAnswerOf(int devices, const std::string& schedule, int threads) {
  const auto trainer = MakeTrainer(TokenModel(), TokenPlan(TokenModel(), devices, schedule),
                                   {.device = {.threads = threads}});
  const auto data = TokensOf(MixedIds(3 * kTokenBatchRows));
  const auto test = TokensOf(MixedIds(kTokenBatchRows + 5));  // the second batch is not whole
  TokenAnswer answer;
  for (int64_t step = 0; step < 3; ++step) {
    const StepResult result =
        trainer->Step(*data, Rows(step * kTokenBatchRows, kTokenBatchRows)).value();
    answer.losses.push_back(result.loss);
    answer.correct.push_back(result.correct);
  }
  answer.evaluation_loss = trainer->Evaluate(*test).value().loss;
  answer.outputs = trainer->Predict(*test).value();
  answer.hash = trainer->ParametersHash().value();
  const std::vector<DeviceReport> reports = trainer->Devices().value();
  for (const DeviceReport& device : reports) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << devices << schedule;
  }
  return answer;
}

TEST(TokenTraining, HasTheSameBitsOverAnyNumberOfStages) {
  const TokenAnswer expected = TokenAnswerOf(1, "gpipe", 1);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const int devices : {1, 2, 4}) {
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
      EXPECT_TRUE(TokenAnswerOf(devices, schedule, 1 + devices % 2) == expected)
          << devices << " devices, " << schedule;
    }
  }
}

// Computed in double: the loss of a sample is the mean over its positions, that of a batch the mean
// over its samples, and an entry of the table takes the gradient of every place where its id
// occurs.
TEST(TokenTraining, StepsAsTheFormulaSays) {
  constexpr float kRate = 0.5F;
  const auto trainer = TableTrainer(kRate);
  const auto table = trainer->Parameter("layer 0: tokens").value();
  const std::vector<int32_t> ids = MixedIds(kTokenBatchRows);
  double loss = 0.0;
  std::vector<double> gradient(table.size());
  const auto V = static_cast<size_t>(kWords);
  constexpr auto kPositions = static_cast<double>(kTokenBatchRows * kContext);
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const size_t row = static_cast<size_t>(ids[i]) * V;
    double sum = 0.0;
    for (size_t c = 0; c < V; ++c) sum += std::exp(static_cast<double>(table[row + c]));
    const auto label = static_cast<size_t>(ids[i + 1]);
    loss += (std::log(sum) - static_cast<double>(table[row + label])) / kPositions;
    for (size_t c = 0; c < V; ++c) {
      const double share = std::exp(static_cast<double>(table[row + c])) / sum;
      gradient[row + c] += (share - (c == label ? 1.0 : 0.0)) / kPositions;
    }
  }
  ASSERT_OK_AND_ASSIGN(const StepResult result,
                       trainer->Step(*TokensOf(ids), Rows(0, kTokenBatchRows)));
  // A row's outputs are within 4 of each other, so that each float that enters is off by few units.
  EXPECT_NEAR(result.loss, loss, Gamma(32) * (1.0 + loss));
  EXPECT_EQ(result.answers, result.rows * kContext);
  const auto updated = trainer->Parameter("layer 0: tokens").value();
  for (size_t k = 0; k < table.size(); ++k) {
    const double expected = static_cast<double>(table[k]) - kRate * gradient[k];
    // Each position contributes at most one gradient of at most 1 / kPositions.
    EXPECT_NEAR(updated[k], expected,
                Gamma(kTokenBatchRows * kContext + 32) * (1.0 + std::fabs(expected)))
        << k;
  }
}

// Returns a table that knows what follows, for a sequence in which every id has one successor.
std::vector<float> SuccessorTable() {
  std::vector<float> table(static_cast<size_t>(kWords * kWords));
  for (int64_t id = 0; id < kWords; ++id) {
    table[static_cast<size_t>(id * kWords + (id + 1) % kWords)] = 3.0F;
  }
  return table;
}

std::vector<int32_t> CountingIds(int64_t rows) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i <= rows * kContext; ++i) ids.push_back(static_cast<int32_t>(i % kWords));
  return ids;
}

TEST(TokenTraining, AccuracyIsThatOfPositions) {
  const auto trainer = TableTrainer(0.0F);
  std::vector<float> table = SuccessorTable();
  ASSERT_OK(trainer->SetParameter("layer 0: tokens", table));
  const int64_t rows = kTokenBatchRows + 7;  // the second batch is not whole
  ASSERT_OK_AND_ASSIGN(const Evaluation all, trainer->Evaluate(*TokensOf(CountingIds(rows))));
  EXPECT_EQ(all.rows, rows);
  EXPECT_EQ(all.correct, rows * kContext);
  EXPECT_EQ(all.answers, rows * kContext);
  EXPECT_EQ(all.accuracy(), 1.0);
  // The table no longer knows one id, and outputs 0 for it.
  std::fill_n(table.begin() + kWords, kWords, 0.0F);
  ASSERT_OK(trainer->SetParameter("layer 0: tokens", table));
  ASSERT_OK_AND_ASSIGN(const Evaluation some, trainer->Evaluate(*TokensOf(CountingIds(kWords))));
  EXPECT_EQ(some.rows, kWords);
  EXPECT_DOUBLE_EQ(some.accuracy(), static_cast<double>(kWords - 1) / kWords);
  ASSERT_OK_AND_ASSIGN(const Evaluation predicted,
                       trainer->Predict(*TokensOf(CountingIds(kWords)),
                                        [](const Outputs&) { return absl::OkStatus(); }));
  EXPECT_EQ(predicted.accuracy(), some.accuracy());
}

TEST(TokenTraining, FitCountsPositions) {
  const auto trainer = TableTrainer(0.0F);
  ASSERT_OK(trainer->SetParameter("layer 0: tokens", SuccessorTable()));
  const auto ids = TokensOf(CountingIds(2 * kTokenBatchRows));
  std::vector<EpochResult> epochs;
  ASSERT_OK(Fit(*trainer, {ids, ids},
                {.on_epoch = [&](const EpochResult& epoch) { epochs.push_back(epoch); }}));
  ASSERT_EQ(epochs.size(), 1);
  EXPECT_EQ(epochs[0].train_accuracy, 1.0);
  EXPECT_EQ(epochs[0].test_accuracy, 1.0);
}

TEST(TokenTraining, RefusesDataThatDoesNotFit) {
  const auto trainer = TableTrainer(0.1F);
  const auto step = [&](const Dataset& data) {
    return trainer->Step(data, Rows(0, kTokenBatchRows)).status();
  };
  using absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(step(*TokensOf(MixedIds(kTokenBatchRows), kContext, kWords + 1)),
              IsRefused("a vocabulary of 12; the model takes ids of 11"));
  EXPECT_THAT(step(*TokensOf(MixedIds(kTokenBatchRows), kContext - 1)),
              IsRefused("ids of shape [5]; the model takes [6]"));
  EXPECT_THAT(step(*SmallData(kTokenBatchRows)), IsRefused("is of numbers; the model takes ids"));
  EXPECT_OK(step(*TokensOf(MixedIds(kTokenBatchRows))));
}

TEST(TokenTraining, LayersThatTakeNumbersRefuseIds) {
  Model model = TokenModel();
  model.layers.erase(model.layers.begin());
  EXPECT_THAT(AnalyzeModel(model, {}), IsRefused("takes numbers, but is given ids"));
  model = TokenModel();
  model.vocabulary = 0;
  EXPECT_THAT(AnalyzeModel(model, {}), IsRefused("takes ids, but is given numbers"));
}

TEST(TokenTraining, AModelOfIdsIsMeasured) {
  const ProfileOptions options{.micro_batch_rows = 4};
  ASSERT_OK_AND_ASSIGN(const ModelProfile measured,
                       MeasureModel(TokenModel(), options, {.repeats = 1, .devices = 2}));
  ASSERT_OK_AND_ASSIGN(const ModelProfile analyzed, AnalyzeModel(TokenModel(), options));
  EXPECT_GT(measured.layers[0].forward_ns, 0.0);
  EXPECT_EQ(measured.layers[0].memory, analyzed.layers[0].memory);
  // Four bytes for each id of four rows.
  EXPECT_EQ(analyzed.layers[0].memory.input_bytes, 4 * kContext * 4);
}

}  // namespace
}  // namespace stagecoach::engine
