// How reports, checkpoints and predictions treat tokens.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/data/tokens/tokens.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/linear.h"
#include "engine/session/predict/prediction.h"
#include "engine/session/predict/scores.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"
#include "tools/stagecoach/flags/saved_options.h"
#include "tools/stagecoach/predict/prediction_report.h"
#include "tools/stagecoach/train/report.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kWords = 7;
constexpr int64_t kContext = 4;
constexpr int64_t kRows = 8;

std::shared_ptr<const engine::Dataset> CountedWords() {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i <= kRows * kContext; ++i) ids.push_back(static_cast<int32_t>(i % kWords));
  return engine::TokenDataset::Create(engine::TokenIds::Of(ids).value(), kContext, kWords).value();
}

// A table of what follows each word.
engine::TrainingRun TableRun(engine::LossFactory loss = engine::SoftmaxCrossEntropy()) {
  const engine::Model model = {
      .input = engine::Shape{kContext},
      .vocabulary = kWords,
      .layers = {engine::Embedding(
          {.vocabulary = kWords, .features = kWords, .token_deviation = 0.5F})},
      .loss = std::move(loss)};
  const std::shared_ptr<const engine::Dataset> data = CountedWords();
  return {.data = {data, data, {.vocabulary = kWords}},
          .prepared = PrepareRun(model, engine::PlanOptions{.micro_batches = 2,
                                                            .micro_batch_rows = kRows / 2})
                          .value()};
}

std::unique_ptr<engine::Trainer> TrainerOf(const engine::TrainingRun& run) {
  return engine::Trainer::Create(run.prepared, {}).value();
}

template <typename F>
std::string Printed(F function) {
  ::testing::internal::CaptureStdout();
  function();
  return ::testing::internal::GetCapturedStdout();
}

// Returns what is printed of an epoch of the run, at 1,000 samples a second.
std::string Reported(const engine::TrainingRun& run, engine::TrainingObserver& report,
                     engine::EpochResult epoch) {
  epoch.samples_per_second = 1000;
  return Printed([&] {
    ASSERT_TRUE(report.Start({}, run).ok());
    report.Epoch(epoch);
  });
}

TEST(TokenReport, TextHasPerplexityAndTokens) {
  const std::string text =
      Reported(TableRun(), *MakeTextReport(1, {}), {.loss = 2.0, .test_loss = 1.5});
  EXPECT_THAT(
      text, AllOf(HasSubstr("data   8 rows of 4 tokens to train on, 8 to test; a vocabulary of 7"),
                  HasSubstr("  perplexity     time     eval    tokens/s\n"),
                  ContainsRegex("%        4\\.48 .* 4,000\n")));
}

TEST(TokenReport, HasAPerplexityOnlyOfCrossEntropy) {
  const engine::TrainingRun run = TableRun(engine::MeanSquaredError());
  const engine::EpochResult epoch = {.test_loss = 1.5};
  EXPECT_THAT(Reported(run, *MakeTextReport(1, {}), epoch),
              AllOf(Not(HasSubstr("perplexity")), HasSubstr("tokens/s")));
  EXPECT_THAT(Reported(run, *MakeJsonReport({}), epoch),
              AllOf(Not(HasSubstr("perplexity")), HasSubstr("tokens_per_second")));
}

TEST(TokenReport, JsonHasPerplexityAndTokens) {
  const std::string text = Reported(TableRun(), *MakeJsonReport({}), {.test_loss = 1.5});
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2);
  const auto epoch = nlohmann::json::parse(lines[1]);
  EXPECT_DOUBLE_EQ(epoch["test_perplexity"].get<double>(), std::exp(1.5));
  EXPECT_EQ(epoch["tokens_per_second"], 4000.0);
  EXPECT_EQ(epoch["samples_per_second"], 1000.0);
}

TEST(TokenReport, OfOtherDataHasNeither) {
  const engine::Model model = {.input = engine::Shape{2}, .layers = {engine::Linear(2)}};
  const auto data = engine::TableDataset::Create({2}, 2, {1, 2, 3, 4}, {0, 1}).value();
  const engine::TrainingRun run = {.data = {data, data},
                                   .prepared = PrepareRun(model, engine::PlanOptions{}).value()};
  for (const bool json : {false, true}) {
    const auto report = json ? MakeJsonReport({}) : MakeTextReport(1, {});
    EXPECT_THAT(Reported(run, *report, {.test_loss = 1.5}),
                AllOf(Not(HasSubstr("perplexity")), Not(HasSubstr("tokens"))));
  }
}

// A prediction of a table that has been saved, and its printed report.
struct Predicted {
  engine::Prediction prediction;
  std::string text, json;
};

absl::StatusOr<Predicted> PredictTokens(std::vector<engine::PredictionTask::File> files = {}) {
  const engine::TrainingRun run = TableRun();
  const auto trainer = TrainerOf(run);
  std::vector<float> table(kWords * kWords);
  for (int64_t id = 0; id < kWords; ++id) {
    table[static_cast<size_t>(id * kWords + (id + 1) % kWords)] = 2.0F;
  }
  RETURN_IF_ERROR(trainer->SetParameter("layer 0: tokens", table));
  const std::string folder = engine::TestDirectory() + "/checkpoints";
  ASSIGN_OR_RETURN(const std::string path, trainer->Save(folder));
  ASSIGN_OR_RETURN(const engine::Checkpoint checkpoint, engine::Checkpoint::Open(path));
  const engine::PredictionTask task = {
      .data = run.data.test, .encoding = run.data.encoding, .files = std::move(files)};
  absl::StatusOr<engine::Prediction> prediction = engine::PredictAll(*trainer, task);
  RETURN_IF_ERROR(prediction.status());
  const auto print = [&](bool json) {
    return Printed([&] {
      const auto report = MakePredictionReport(json);
      report->Start(checkpoint, *trainer, task);
      report->End(task, *prediction, {});
    });
  };
  const std::string text = print(false);
  const std::string json = print(true);
  return Predicted{*std::move(prediction), text, json};
}

TEST(TokenPrediction, CountsPositionsAndNoClasses) {
  ASSERT_OK_AND_ASSIGN(const Predicted predicted, PredictTokens());
  EXPECT_EQ(predicted.prediction.evaluation.correct, kRows * kContext);
  EXPECT_TRUE(predicted.prediction.confusion.of_class().empty());
  EXPECT_THAT(predicted.text,
              AllOf(HasSubstr("data   8 rows of 4 tokens\n"),
                    HasSubstr("accuracy 100.00 % (32 of 32)"), Not(HasSubstr("class"))));
  // The loss is -log(e^2 / (e^2 + 6)) at every position.
  const double perplexity = (std::exp(2.0) + 6.0) / std::exp(2.0);
  EXPECT_THAT(predicted.text, HasSubstr(absl::StrFormat("perplexity %.2f,", perplexity)));
  const std::vector<std::string> lines = absl::StrSplit(predicted.json, '\n', absl::SkipEmpty());
  const auto end = nlohmann::json::parse(lines.at(1));
  EXPECT_NEAR(end["perplexity"].get<double>(), perplexity, 1e-5);
  EXPECT_EQ(end["accuracy"], 1.0);
  EXPECT_TRUE(end.contains("tokens_per_second"));
  EXPECT_FALSE(end.contains("classes"));
  EXPECT_FALSE(end.contains("confusion"));
}

TEST(TokenPrediction, WritesTheOutputsOfEveryPosition) {
  const std::string path = engine::TestDirectory() + "/outputs.jsonl";
  ASSERT_OK(PredictTokens({{path, engine::PredictionLayout::Content::kOutputs}}).status());
  ASSERT_OK_AND_ASSIGN(const std::string text, base::ReadFile(path, 1 << 20));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), kRows);
  const auto outputs = nlohmann::json::parse(lines[1])["outputs"].get<std::vector<float>>();
  ASSERT_EQ(outputs.size(), kContext * kWords);
  for (size_t t = 0; t < kContext; ++t) {
    for (size_t word = 0; word < kWords; ++word) {
      const bool follows = word == (kContext + t + 1) % kWords;
      EXPECT_EQ(outputs[t * kWords + word], follows ? 2.0F : 0.0F) << t << ", " << word;
    }
  }
}

// The likelihood of a position is e^2 / (e^2 + 6), or not a number.
TEST(TokenPrediction, ScoresEveryRow) {
  const engine::Model model = TableRun().prepared.model;
  const auto trainer =
      engine::Trainer::Create(
          PrepareRun(model, engine::PlanOptions{.micro_batches = 3, .micro_batch_rows = 1}).value(),
          {})
          .value();
  engine::PredictionTask task = {.data = CountedWords(),
                                 .wants_scores = true,
                                 .scores = engine::TestDirectory() + "/scores.jsonl"};
  const auto scored_as = [&](float value) {
    std::vector<float> table(kWords * kWords);
    for (int64_t id = 0; id < kWords; ++id) {
      table[static_cast<size_t>(id * kWords + (id + 1) % kWords)] = value;
    }
    EXPECT_OK(trainer->SetParameter("layer 0: tokens", table));
    const engine::Prediction prediction = engine::ScoreAll(*trainer, task).value();
    EXPECT_EQ(prediction.not_finite, std::isfinite(value) ? 0 : kRows);
    const std::string text = base::ReadFile(task.scores, 1 << 20).value();
    std::vector<nlohmann::json> lines;
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  };
  const std::vector<nlohmann::json> lines = scored_as(2.0F);
  ASSERT_EQ(std::ssize(lines), kRows);
  const double log_likelihood = 2.0 - std::log(std::exp(2.0) + 6.0);
  for (int64_t row = 0; row < kRows; ++row) {
    const nlohmann::json& line = lines[static_cast<size_t>(row)];
    EXPECT_EQ(line["row"], row);
    EXPECT_EQ(line["tokens"], kContext);
    EXPECT_EQ(line["correct"], kContext);
    EXPECT_NEAR(line["log_likelihood"].get<double>(), kContext * log_likelihood, 1e-5);
    EXPECT_NEAR(line["perplexity"].get<double>(), std::exp(-log_likelihood), 1e-5);
  }
  const std::vector<nlohmann::json> unknown = scored_as(std::nanf(""));
  EXPECT_TRUE(unknown.front()["log_likelihood"].is_null());
  EXPECT_TRUE(unknown.front()["perplexity"].is_null());

  task.lines = {{.line = 2, .left_out = "of no use"}};
  for (int64_t row = 0; row < kRows; ++row) task.lines.push_back({.line = 10 + row});
  task.lines.push_back({.line = 90, .left_out = "too long"});
  const std::vector<nlohmann::json> numbered = scored_as(2.0F);
  ASSERT_EQ(std::ssize(numbered), kRows + 2);
  EXPECT_EQ(numbered.front(), (nlohmann::json{{"line", 2}, {"left_out", "of no use"}}));
  EXPECT_EQ(numbered[1]["line"], 10);
  EXPECT_EQ(numbered.back(), (nlohmann::json{{"line", 90}, {"left_out", "too long"}}));
}

// They are saved with a run, like everything else compared here, so that a resumed run has the same
// rows.
TEST(TokenOptions, DecideTheResults) {
  engine::Manifest manifest;
  manifest.options = {{"--context", "8", false}, {"--vocabulary", "9", false}};
  EXPECT_EQ(DescribeChanges(manifest, {}, TableRun()),
            "--context was 8 and is 4; --vocabulary was 9 and is 7");
  // A checkpoint from before rows began elsewhere in each epoch.
  engine::TrainingRun run = TableRun();
  run.data.encoding.rows_move = true;
  manifest = {.encoding = run.data.encoding};
  EXPECT_EQ(DescribeChanges(manifest, {}, run), "");
  manifest.encoding.rows_move = false;
  EXPECT_EQ(DescribeChanges(manifest, {}, run), "every epoch had the same rows of tokens");
}

// A confusion table of that many classes is not readable.
TEST(PredictionTask, CountsClassesWhereTheyAreFew) {
  for (const int64_t classes : {1000, 1001}) {
    const engine::PredictionTask task = {
        .data = engine::TableDataset::Create({1}, classes, {1.0F}, {0}).value()};
    EXPECT_TRUE(task.has_one_label());
    EXPECT_EQ(task.counts_classes(), classes <= 1000);
  }
  const engine::PredictionTask tokens = {.data = CountedWords()};
  EXPECT_TRUE(tokens.has_labels());
  EXPECT_FALSE(tokens.has_one_label());
  EXPECT_FALSE(tokens.counts_classes());
}

}  // namespace
}  // namespace stagecoach::tools
