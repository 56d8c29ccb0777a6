// Runs on conversations: rows of different lengths, of which the model learns some tokens alone.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/chat/chat_dataset.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/head.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::StatusIs;

constexpr int64_t kChatWords = 13;
constexpr int64_t kChatContext = 7;
constexpr int64_t kChatBatchRows = 12;

// Examples of 2 to kChatContext + 1 tokens, from one to all of them to be learned.
std::vector<ChatTokens> UnequalChats(int64_t count) {
  std::vector<ChatTokens> examples;
  for (int64_t i = 0; i < count; ++i) {
    ChatTokens& example = examples.emplace_back();
    const int64_t length = 2 + i * i % kChatContext;
    for (int64_t k = 0; k < length; ++k) {
      example.ids.push_back(static_cast<int32_t>((i * 5 + k * k * 3) % kChatWords));
      example.trained.push_back(k + 1 == length || (i + k) % 3 == 0);
    }
  }
  return examples;
}

std::shared_ptr<const ChatDataset> DataOf(const std::vector<ChatTokens>& examples) {
  return ChatDataset::Create(examples, kChatContext, kChatWords).value();
}

// A transformer of one block. Its loss is its head's or a loss of its own.
Model ChatModel(bool has_head) {
  return {.input = Shape{kChatContext},
          .vocabulary = kChatWords,
          .layers = {Embedding({.vocabulary = kChatWords, .features = 8, .positions = true}),
                     Residual({LayerNorm(), Linear(24), Attention({.heads = 2}), Linear(8)}),
                     Residual({LayerNorm(), Linear(16, Activation::kGelu), Linear(8)}),
                     has_head ? Head({.classes = kChatWords}) : Linear(kChatWords)}};
}

struct ChatAnswer {
  std::vector<double> losses;
  std::vector<int64_t> correct;
  double evaluation_loss = 0.0;
  std::string hash;

  friend bool operator==(const ChatAnswer&, const ChatAnswer&) = default;
};

ChatAnswer ChatAnswerOf(const Model& model, const partition::Plan& plan) {
  const auto trainer = MakeTrainer(model, plan, {});
  const auto data = DataOf(UnequalChats(3 * kChatBatchRows));
  ChatAnswer answer;
  for (int64_t step = 0; step < 3; ++step) {
    const StepResult result =
        trainer->Step(*data, Rows(step * kChatBatchRows, kChatBatchRows)).value();
    answer.losses.push_back(result.loss);
    answer.correct.push_back(result.correct);
  }
  // The last batch is not whole.
  answer.evaluation_loss =
      trainer->Evaluate(*DataOf(UnequalChats(kChatBatchRows + 5))).value().loss;
  answer.hash = trainer->ParametersHash().value();
  const std::vector<DeviceReport> reports = trainer->Devices().value();
  for (const DeviceReport& device : reports) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
  }
  return answer;
}

TEST(ChatTraining, HasTheSameBitsForEveryPartitionAndSchedule) {
  for (const bool has_head : {true, false}) {
    const Model model = ChatModel(has_head);
    const ChatAnswer expected = ChatAnswerOf(model, EvenPlan(model, 1, "gpipe", 4, 3));
    for (const int devices : {2, 4}) {
      for (const char* schedule : {"1f1b", "zb-h1"}) {
        EXPECT_TRUE(ChatAnswerOf(model, EvenPlan(model, devices, schedule, 4, 3)) == expected)
            << devices << " devices, " << schedule << ", head " << has_head;
      }
    }
    // Two replicas sum the gradients of two halves of the batch, as one device does that is asked
    // to.
    const partition::Replication halves = {.gradient_blocks = 2};
    const partition::Replication replicas = {.replicas = 2, .gradient_blocks = 2};
    EXPECT_TRUE(ChatAnswerOf(model, EvenPlan(model, 2, "1f1b", 4, 3, 0, replicas)) ==
                ChatAnswerOf(model, EvenPlan(model, 1, "gpipe", 4, 3, 0, halves)))
        << has_head;
  }
}

std::vector<Evaluation> RowsEvaluated(Trainer& trainer, const Dataset& data) {
  std::vector<Evaluation> all;
  const auto take = [&](absl::Span<const Evaluation> rows) {
    all.insert(all.end(), rows.begin(), rows.end());
    return absl::OkStatus();
  };
  EXPECT_OK(trainer.EvaluateRows(data, take));
  return all;
}

// Whatever its neighbours are, and wherever it is computed.
TEST(ChatRows, EachHasTheBitsOfItsOwnEvaluation) {
  const std::vector<ChatTokens> examples = UnequalChats(kChatBatchRows + 5);
  const auto data = DataOf(examples);
  for (const bool has_head : {true, false}) {
    const Model model = ChatModel(has_head);
    const auto alone = MakeTrainer(model, EvenPlan(model, 1, "gpipe", 1, 1), {});
    std::vector<double> losses;
    for (const ChatTokens& example : examples) {
      losses.push_back(alone->Evaluate(*DataOf({example})).value().loss);
    }
    const std::vector<partition::Plan> plans = {EvenPlan(model, 1, "gpipe", 4, 1),
                                                EvenPlan(model, 3, "1f1b", 4, 1),
                                                EvenPlan(model, 2, "1f1b", 6, 1, 0, {2, 2})};
    for (const partition::Plan& plan : plans) {
      const auto trainer = MakeTrainer(model, plan, {});
      const std::vector<Evaluation> rows = RowsEvaluated(*trainer, *data);
      ASSERT_EQ(rows.size(), examples.size());
      Evaluation sums;
      for (size_t row = 0; row < rows.size(); ++row) {
        EXPECT_EQ(rows[row].loss, losses[row]) << row;
        EXPECT_EQ(rows[row].answers, LearnedTokens(examples[row])) << row;
        EXPECT_EQ(rows[row].rows, 1);
        sums.loss += rows[row].loss * static_cast<double>(rows[row].answers);
        sums.correct += rows[row].correct;
        sums.answers += rows[row].answers;
      }
      const Evaluation all = trainer->Evaluate(*data).value();
      EXPECT_EQ(all.correct, sums.correct);
      EXPECT_EQ(all.answers, sums.answers);
      EXPECT_NEAR(all.loss, sums.loss / static_cast<double>(sums.answers), 1e-12);
    }
  }
}

TEST(ChatRows, AreMicroBatches) {
  const Model model = ChatModel(true);
  const auto trainer = MakeTrainer(model, EvenPlan(model, 1, "gpipe", 2, 2), {});
  const auto take = [](absl::Span<const Evaluation>) { return absl::OkStatus(); };
  EXPECT_THAT(trainer->EvaluateRows(*DataOf(UnequalChats(4)), take),
              StatusIs(absl::StatusCode::kInvalidArgument, "a micro-batch has 2 rows"));
}

// The sums are the same, however a batch is cut, except for their rounding. A mean of the means of
// micro-batches, whose numbers of learned tokens differ, is far from it.
TEST(ChatTraining, EveryTokenCountsAlikeWhateverTheMicroBatches) {
  const Model model = ChatModel(true);
  const ChatAnswer whole = ChatAnswerOf(model, EvenPlan(model, 1, "gpipe", 1, kChatBatchRows));
  for (const int micro_batches : {2, 4, 12}) {
    const ChatAnswer parts = ChatAnswerOf(
        model, EvenPlan(model, 1, "gpipe", micro_batches, kChatBatchRows / micro_batches));
    for (size_t step = 0; step < whole.losses.size(); ++step) {
      EXPECT_NEAR(parts.losses[step], whole.losses[step], 1e-5) << micro_batches;
    }
    EXPECT_EQ(parts.correct, whole.correct);
    EXPECT_NEAR(parts.evaluation_loss, whole.evaluation_loss, 1e-5);
  }
}

// Computed in double: the outputs are rows of a table, which take the gradients of every place
// where the token after their id is learned, each divided by the number of such places.
TEST(ChatTraining, StepsAsTheFormulaSays) {
  constexpr float kRate = 0.5F;
  const Model model = {
      .input = Shape{kChatContext},
      .vocabulary = kChatWords,
      .layers = {
          Embedding({.vocabulary = kChatWords, .features = kChatWords, .token_deviation = 0.5F})}};
  const auto trainer = MakeTrainer(
      model, EvenPlan(model, 1, "gpipe", 4, 3),
      {.optimizer = Optimizer::Sgd(0.0F), .learning_rate = LearningRate::Constant(kRate)});
  const auto table = trainer->Parameter("layer 0: tokens").value();
  const std::vector<ChatTokens> examples = UnequalChats(kChatBatchRows);
  double learned = 0.0, loss = 0.0;
  for (const ChatTokens& example : examples) {
    learned += static_cast<double>(LearnedTokens(example));
  }
  ASSERT_LT(learned, kChatBatchRows * kChatContext / 2);
  std::vector<double> gradient(table.size());
  const auto V = static_cast<size_t>(kChatWords);
  for (const ChatTokens& example : examples) {
    for (size_t i = 0; i + 1 < example.ids.size(); ++i) {
      if (!example.trained[i + 1]) continue;
      const size_t row = static_cast<size_t>(example.ids[i]) * V;
      const auto label = static_cast<size_t>(example.ids[i + 1]);
      double sum = 0.0;
      for (size_t c = 0; c < V; ++c) sum += std::exp(static_cast<double>(table[row + c]));
      loss += (std::log(sum) - static_cast<double>(table[row + label])) / learned;
      for (size_t c = 0; c < V; ++c) {
        const double share = std::exp(static_cast<double>(table[row + c])) / sum;
        gradient[row + c] += (share - (c == label ? 1.0 : 0.0)) / learned;
      }
    }
  }
  ASSERT_OK_AND_ASSIGN(const StepResult result,
                       trainer->Step(*DataOf(examples), Rows(0, kChatBatchRows)));
  EXPECT_NEAR(result.loss, loss, Gamma(32) * (1.0 + loss));
  EXPECT_EQ(result.answers, static_cast<int64_t>(learned));
  const auto updated = trainer->Parameter("layer 0: tokens").value();
  for (size_t k = 0; k < table.size(); ++k) {
    const double expected = static_cast<double>(table[k]) - kRate * gradient[k];
    EXPECT_NEAR(updated[k], expected,
                Gamma(kChatBatchRows * kChatContext + 32) * (1.0 + std::fabs(expected)))
        << k;
  }
}

// An epoch's loss and accuracy are over its learned tokens, also of steps that have fewer of them.
TEST(ChatTraining, AnEpochIsTheMeanOverItsLearnedTokens) {
  const Model model = ChatModel(true);
  const auto trainer = MakeTrainer(model, EvenPlan(model, 1, "gpipe", 4, 3),
                                   {.learning_rate = LearningRate::Constant(0.0F)});
  const auto data = DataOf(UnequalChats(2 * kChatBatchRows));
  std::vector<EpochResult> epochs;
  ASSERT_OK(Fit(*trainer, {data, data},
                {.on_epoch = [&](const EpochResult& epoch) { epochs.push_back(epoch); }}));
  ASSERT_EQ(epochs.size(), 1);
  EXPECT_NEAR(epochs[0].loss, epochs[0].test_loss, 1e-6);
  EXPECT_DOUBLE_EQ(epochs[0].train_accuracy, epochs[0].test_accuracy);
  EXPECT_LE(epochs[0].test_accuracy, 1.0);
}

}  // namespace
}  // namespace stagecoach::engine
