// Frozen models whose weights are quantized. What bitsandbytes and PEFT compute with them is in
// lora_test.cc.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/models/model_file.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/quantized_matrix.h"
#include "tests/engine/train/models/lora_fixture.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::HasSubstr;

constexpr char kBaseFolder[] = "lora/llama/base";

Transformer WithQuantization(const LoraFixture& fixture, kernels::Quantization quantization) {
  Transformer transformer = fixture.transformer;
  transformer.quantization = quantization;
  return transformer;
}

std::unique_ptr<Trainer> QuantizedTrainer(const LoraFixture& fixture,
                                          kernels::Quantization quantization,
                                          const std::string& base) {
  const Transformer transformer = WithQuantization(fixture, quantization);
  const Model model =
      ModelFor(transformer, absl::StrCat(ModelFileOf(transformer), LoraTableOf(fixture.lora)));
  auto trainer = MakeTrainer(model, EvenPlan(model, 2, "1f1b", 4, 1), fixture.Options());
  SetValues(*trainer, transformer, base, fixture.FolderOf("adapter_initial"));
  return trainer;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(double{a[i]} - double{b[i]}));
  }
  return largest;
}

// A folder of float32 that is quantized when it is read, and one that bitsandbytes has quantized,
// are the same model, except for the rounding of the scales' mean.
TEST(Quantized, IsWhatBitsAndBytesQuantizes) {
  const LoraFixture fixture("lora/llama");
  for (const auto& [quantization, name] : {std::pair(kernels::Quantization::kNf4, "nf4"),
                                           {kernels::Quantization::kNf4Single, "nf4_single"}}) {
    const auto ours = QuantizedTrainer(fixture, quantization, FixturePath(kBaseFolder));
    const auto theirs = QuantizedTrainer(
        fixture, quantization, FixturePath(absl::StrCat("quantized/llama_", name, "/base")));
    int quantized = 0;
    for (const ModelParameter& parameter : ours->run().profile.parameters.all()) {
      const double difference = LargestDifference(ours->Parameter(parameter.name).value(),
                                                  theirs->Parameter(parameter.name).value());
      const bool is_double = quantization == kernels::Quantization::kNf4;
      EXPECT_LE(difference, is_double && parameter.quantized.has_value() ? 2e-7 : 0.0)
          << parameter.name;
      if (parameter.quantized.has_value()) ++quantized;
    }
    EXPECT_EQ(quantized, 8);  // of each of 2 blocks: q, k, v; o; gate, up; down
  }
}

TEST(Quantized, HasTheLogitsOfBitsAndBytes) {
  for (const char* name : {"llama_nf4", "llama_nf4_single", "qwen2_nf4", "llama_int8"}) {
    SCOPED_TRACE(name);
    // The one without double quantization has no adapters of its own.
    const LoraFixture fixture(name == std::string("qwen2_nf4") ? "lora/qwen2" : "lora/llama");
    const std::string folder = absl::StrCat("quantized/", name);
    const Transformer theirs = ReadHuggingFaceConfigFile(FixturePath(folder + "/base")).value();
    ASSERT_TRUE(theirs.quantization.has_value());
    const auto trainer =
        QuantizedTrainer(fixture, *theirs.quantization, FixturePath(folder + "/base"));
    // Without what the adapters add.
    for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
      if (!parameter.is_adapter) continue;
      const std::vector<float> zeros(static_cast<size_t>(parameter.shape.elements()));
      ASSERT_OK(trainer->SetParameter(parameter.name, zeros));
    }
    const std::vector<float> logits = trainer->Predict(*fixture.data).value();
    const nlohmann::json expected = ReadFixture(folder + "/expected.json")["base_logits"];
    double largest = 0.0, error = 0.0;
    size_t i = 0;
    for (const nlohmann::json& row : expected) {
      for (const nlohmann::json& logit : row) {
        largest = std::max(largest, std::fabs(logit.get<double>()));
        error = std::max(error, std::fabs(logit.get<double>() - double{logits[i++]}));
      }
    }
    EXPECT_GT(largest, 0.1);
    EXPECT_LE(error, 1e-5 * largest);
  }
}

// Quantized values are levels, so that quantizing them again changes nothing, except where the
// scales are quantized too.
TEST(Quantized, ValuesAreThoseThatWereSetRounded) {
  const LoraFixture fixture("lora/llama");
  for (const kernels::Quantization quantization : kernels::kAllQuantizations) {
    SCOPED_TRACE(QuantizationName(quantization));
    const auto trainer = QuantizedTrainer(fixture, quantization, FixturePath(kBaseFolder));
    const char* const name = "layer 1: 1.weight";
    std::vector<float> values = trainer->Parameter(name).value();
    ASSERT_OK(trainer->SetParameter(name, values));
    const std::vector<float> again = trainer->Parameter(name).value();
    const double largest =
        std::fabs(*std::max_element(values.begin(), values.end(),
                                    [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    const bool is_exact = quantization != kernels::Quantization::kNf4;
    EXPECT_LE(LargestDifference(again, values), is_exact ? 1e-6 * largest : 0.01 * largest);
    for (float& value : values) value = 0.25F;
    ASSERT_OK(trainer->SetParameter(name, values));
    EXPECT_LE(LargestDifference(trainer->Parameter(name).value(), values), 1e-7);
  }
}

std::string QuantizedLayers(const std::string& tables) {
  return absl::StrCat(
      "[[layer]]\ntype = \"linear\"\noutputs = 24\nactivation = \"relu\"\n[[layer]]\ntype = "
      "\"linear\"\noutputs = \"classes\"\n",
      tables);
}
constexpr char kAdapters[] = "[lora]\nrank = 3\n";
constexpr char kNf4Weights[] = "[quantization]\ntype = \"nf4\"\n";

// A model that is drawn is quantized as well: weights are close to what they are without, and other
// parameters the same.
TEST(Quantized, ModelsAreDrawn) {
  const auto trainer_of = [](const std::string& tables) {
    const Model model = ParseModel(QuantizedLayers(tables), kSmallFeatures, kSmallClasses).value();
    return MakeTrainer(model, EvenPlan(model, 2, "1f1b", 4, 6), {});
  };
  const auto plain = trainer_of(kAdapters);
  const auto quantized = trainer_of(absl::StrCat(kAdapters, kNf4Weights));
  for (const ModelParameter& parameter : plain->run().profile.parameters.all()) {
    const std::vector<float> values = plain->Parameter(parameter.name).value();
    const double difference =
        LargestDifference(quantized->Parameter(parameter.name).value(), values);
    if (parameter.name == "layer 0: weight" || parameter.name == "layer 1: weight") {
      const auto [least, most] = std::minmax_element(values.begin(), values.end());
      EXPECT_GT(difference, 0.0) << parameter.name;
      EXPECT_LT(difference, 0.16 * std::max(-*least, *most)) << parameter.name;
    } else {
      EXPECT_EQ(difference, 0.0) << parameter.name;
    }
  }
}

TEST(Quantized, ModelsWithoutAdaptersAreNotTrained) {
  const Model model =
      ParseModel(QuantizedLayers(kNf4Weights), kSmallFeatures, kSmallClasses).value();
  EXPECT_THAT(Trainer::Create(model, EvenPlan(model, 2, "1f1b", 4, 6), TrainerOptions{}),
              StatusIs(absl::StatusCode::kInvalidArgument, "no layer has adapters"));
  ASSERT_OK_AND_ASSIGN(const auto trainer,
                       Trainer::Create(PrepareRun(model, {.devices = 2, .predicts = true}).value(),
                                       TrainerOptions{}));
  const auto data = SmallData(24);
  EXPECT_OK(trainer->Predict(*data).status());
}

TEST(Quantized, TablesThatAreWrongAreRefused) {
  const auto refused = [](const std::string& tables) {
    return ParseModel(QuantizedLayers(tables), kSmallFeatures, kSmallClasses).status();
  };
  EXPECT_THAT(refused("[quantization]\ntype = \"nf5\"\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "$.quantization.type: no quantization is "
                       "named \"nf5\"; there are nf4, "
                       "nf4-single, int8"));
  EXPECT_THAT(refused("[quantization]\ntype = \"nf4\"\nbits = 4\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "bits"));
}

// A checkpoint has the stored form; one of another form is told from it.
TEST(Quantized, ChecksWhatACheckpointHas) {
  const TestFolder folder;
  const auto data = SmallData(24);
  const auto trainer_of = [&](const std::string& type) {
    const std::string tables =
        type.empty() ? kAdapters
                     : absl::StrCat(kAdapters, "[quantization]\ntype = \"", type, "\"\n");
    const Model model = ParseModel(QuantizedLayers(tables), kSmallFeatures, kSmallClasses).value();
    return MakeTrainer(model, EvenPlan(model, 2, "1f1b", 4, 6), {});
  };
  const auto trainer = trainer_of("nf4");
  ASSERT_OK(trainer->Step(*data, Rows(0, 24)));
  ASSERT_OK_AND_ASSIGN(const std::string saved, trainer->Save(folder.path().string()));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(saved));
  EXPECT_OK(checkpoint.Verify());
  EXPECT_OK(trainer_of("nf4")->Restore(saved));
  EXPECT_THAT(
      trainer_of("int8")->Restore(saved),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"layer 0: weight\" is nf4 [")));
  EXPECT_THAT(trainer_of("")->Restore(saved),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("in it, and not quantized in this one")));
}

}  // namespace
}  // namespace stagecoach::engine
