// Runs on rows of several examples, each of which is a document of its own.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;

constexpr int64_t kPackedWords = 37;
constexpr int64_t kPackedContext = 150;  // more than two tiles of attention, and not a multiple

// Examples of 2 to 100 tokens, from one to all of them to be learned.
std::vector<ChatTokens> LongAndShortChats(int64_t count) {
  std::vector<ChatTokens> examples;
  for (int64_t i = 0; i < count; ++i) {
    ChatTokens& example = examples.emplace_back();
    const int64_t length = 2 + i * i * 7 % 99;
    for (int64_t k = 0; k < length; ++k) {
      example.ids.push_back(static_cast<int32_t>((i * 5 + k * k * 3) % kPackedWords));
      example.trained.push_back(k + 1 == length || (i + k) % 3 == 0);
    }
  }
  return examples;
}

std::shared_ptr<const ChatDataset> DataOf(const std::vector<ChatTokens>& examples,
                                          ExamplesInRow in_row) {
  return ChatDataset::Create(examples, kPackedContext, kPackedWords, in_row).value();
}

Model ModelNamed(const std::string& name, bool has_documents, const std::string& more = "") {
  Model model =
      ParseModel(
          absl::StrCat(ModelFileOf(NamedTransformer(name).value()), more),
          {.input = Shape{kPackedContext}, .vocabulary = kPackedWords, .classes = kPackedWords})
          .value();
  model.has_documents = has_documents;
  return model;
}

Model PackedLlama(bool has_documents, const std::string& more = "") {
  return ModelNamed(
      "llama:blocks=2,width=16,heads=4,kv_heads=2,hidden=24,context=150,vocabulary=37",
      has_documents, more);
}

// What a step over all rows leaves.
struct Stepped {
  double loss = 0.0;
  int64_t answers = 0;
  std::vector<std::vector<float>> parameters;
};

Stepped StepOver(const Model& model, const Dataset& data, int64_t micro_batch_rows) {
  const auto micro_batches = static_cast<int>(data.rows() / micro_batch_rows);
  const auto trainer = MakeTrainer(
      model, EvenPlan(model, 2, "1f1b", micro_batches, micro_batch_rows),
      {.optimizer = Optimizer::Sgd(0.0F), .learning_rate = LearningRate::Constant(1.0F)});
  const StepResult result = trainer->Step(data, Rows(0, data.rows())).value();
  Stepped stepped = {.loss = result.loss, .answers = result.answers};
  for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
    stepped.parameters.push_back(trainer->Parameter(parameter.name).value());
  }
  return stepped;
}

// The gradient of a parameter is compared relative to the largest change of that parameter.
TEST(PackedTraining, AStepIsThatOfTheExamplesOneByOne) {
  std::vector<ChatTokens> examples = LongAndShortChats(23);
  while (DataOf(examples, ExamplesInRow::kPacked)->rows() % 2 != 0) examples.pop_back();
  const auto packed = DataOf(examples, ExamplesInRow::kPacked);
  const auto apart = DataOf(examples, ExamplesInRow::kOne);
  ASSERT_LT(packed->rows(), apart->rows() / 2);
  const Model model = PackedLlama(true);
  const Stepped together = StepOver(model, *packed, 2);
  const Stepped one_by_one = StepOver(PackedLlama(false), *apart, 1);
  EXPECT_EQ(together.answers, one_by_one.answers);
  EXPECT_NEAR(together.loss, one_by_one.loss, 1e-6 * one_by_one.loss);
  const auto initial =
      MakeTrainer(model, EvenPlan(model, 1, "gpipe", 1, 1), {.optimizer = Optimizer::Sgd(0.0F)});
  const auto& all = initial->run().profile.parameters.all();
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<float> before = initial->Parameter(all[i].name).value();
    double largest = 0.0, error = 0.0;
    for (size_t k = 0; k < before.size(); ++k) {
      const double expected = double{one_by_one.parameters[i][k]} - before[k];
      largest = std::max(largest, std::fabs(expected));
      error = std::max(error, std::fabs(double{together.parameters[i][k]} - before[k] - expected));
    }
    EXPECT_GT(largest, 0.0) << all[i].name;
    EXPECT_LE(error, 2e-5 * largest + 1e-7) << all[i].name;
  }
}

struct PackedAnswer {
  std::vector<double> losses;
  double evaluation_loss = 0.0;
  std::string hash;

  friend bool operator==(const PackedAnswer&, const PackedAnswer&) = default;
};

constexpr int kPackedMicroBatches = 4;

PackedAnswer PackedAnswerOf(const Model& model, partition::Plan plan,
                            Recompute recompute = Recompute::kPlanned) {
  GivenPlan given = {.plan = std::move(plan), .recompute = recompute};
  plan = PrepareRun(model, std::move(given)).value().plan();
  const auto trainer = MakeTrainer(model, plan, {});
  const auto data = DataOf(LongAndShortChats(60), ExamplesInRow::kPacked);
  const int64_t batch = plan.batch_rows();
  PackedAnswer answer;
  for (int64_t step = 0; step < 2; ++step) {
    answer.losses.push_back(trainer->Step(*data, Rows(step * batch, batch)).value().loss);
  }
  // The last batch is not whole.
  answer.evaluation_loss = trainer->Evaluate(*data).value().loss;
  answer.hash = trainer->ParametersHash().value();
  const std::vector<DeviceReport> reports = trainer->Devices().value();
  for (const DeviceReport& device : reports) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
  }
  return answer;
}

TEST(PackedTraining, HasTheSameBitsForEveryPartitionAndSchedule) {
  const std::string adapters = "\n[lora]\nrank = 3\ndropout = 0.25\n";
  for (const std::string& more : {std::string(), adapters}) {
    const Model model = PackedLlama(true, more);
    const auto plan = [&](int devices, const char* schedule,
                          const partition::Replication& replication = {}) {
      return EvenPlan(model, devices, schedule, kPackedMicroBatches, 2, 0, replication);
    };
    const PackedAnswer expected = PackedAnswerOf(model, plan(1, "gpipe"));
    for (const int devices : {2, 3}) {
      for (const char* schedule : {"1f1b", "zb-h1"}) {
        EXPECT_TRUE(PackedAnswerOf(model, plan(devices, schedule)) == expected)
            << devices << " devices, " << schedule << more;
      }
    }
    EXPECT_TRUE(PackedAnswerOf(model, plan(2, "zb-v"), Recompute::kFull) == expected) << more;
    const partition::Replication halves = {.gradient_blocks = 2};
    const partition::Replication replicas = {.replicas = 2, .gradient_blocks = 2};
    EXPECT_TRUE(PackedAnswerOf(model, plan(2, "1f1b", replicas)) ==
                PackedAnswerOf(model, plan(1, "gpipe", halves)))
        << more;
  }
}

TEST(PackedTraining, NeedsAModelThatTellsDocumentsApart) {
  const auto packed = DataOf(LongAndShortChats(8), ExamplesInRow::kPacked);
  const Model apart = PackedLlama(false);
  const auto trainer = MakeTrainer(apart, EvenPlan(apart, 1, "gpipe", 1, 1), {});
  EXPECT_THAT(trainer->Step(*packed, Rows(0, 1)),
              IsRefused("consist of several documents; the model takes them as one"));
  EXPECT_THAT(trainer->Evaluate(*packed), IsRefused("consist of several documents"));
  const Model learned = ModelNamed("gpt2:blocks=1,width=16,heads=2,context=150,vocabulary=37",
                                   /*has_documents=*/true);
  EXPECT_THAT(PrepareRun(learned, {.plan = EvenPlan(PackedLlama(false), 1, "gpipe", 1, 1)}),
              IsRefused("packed examples need a model with rotary positions"));
}

// Such a model takes rows of one document, too, and computes the same of them.
TEST(PackedTraining, ARowOfOneDocumentIsAsBefore) {
  const auto apart = DataOf(LongAndShortChats(8), ExamplesInRow::kOne);
  const Stepped told = StepOver(PackedLlama(true), *apart, 1);
  const Stepped not_told = StepOver(PackedLlama(false), *apart, 1);
  EXPECT_EQ(told.loss, not_told.loss);
  EXPECT_EQ(told.parameters, not_told.parameters);
}

}  // namespace
}  // namespace stagecoach::engine
