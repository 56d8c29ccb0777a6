#include "engine/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/data/tokens/tokens.h"
#include "engine/generate/token_choice.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/image/flatten.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "partition/cost/layer_cost.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kInvalidArgument;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;

// A model of the fixtures of transformers_test.cc, with its parameters.
class FixtureModel {
 public:
  explicit FixtureModel(const std::string& name)
      : folder_(absl::StrCat(STAGECOACH_TEST_FIXTURES, "/transformers/", name)),
        transformer_(ReadHuggingFaceConfigFile(folder_).value()) {}
  FixtureModel(const std::string& name, int64_t context) : FixtureModel(name) {
    transformer_.context = context;
  }

  const std::string& folder() const { return folder_; }

  int64_t context() const { return transformer_.context; }
  int64_t vocabulary() const { return transformer_.vocabulary; }
  Model model() const {
    return ParseModel(
               ModelFileOf(transformer_),
               {.input = Shape{context()}, .vocabulary = vocabulary(), .classes = vocabulary()})
        .value();
  }
  std::unique_ptr<Trainer> TrainerOf(const Model& model, const PlanOptions& plan) const {
    std::unique_ptr<Trainer> trainer =
        Trainer::Create(PrepareRun(model, plan).value(),
                        {.draws_parameters = false, .device = plan.device})
            .value();
    const HuggingFaceFolder folder = HuggingFaceFolder::Open(folder_, transformer_).value();
    EXPECT_OK(trainer->SetParameters(std::bind_front(&HuggingFaceFolder::Read, folder)));
    return trainer;
  }
  std::unique_ptr<Trainer> ForGeneration(PlanOptions plan, int64_t sequences = 1) const {
    plan.predicts = true;
    return TrainerOf(ModelForGeneration(model(), sequences).value(), plan);
  }

 private:
  std::string folder_;
  Transformer transformer_;
};

std::vector<int32_t> SomeIds(const FixtureModel& fixture) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i <= fixture.context(); ++i) {
    ids.push_back(static_cast<int32_t>((7 * i + i * i) % fixture.vocabulary()));
  }
  return ids;
}

class Generators : public ::testing::TestWithParam<std::tuple<std::string, Precision>> {
 protected:
  void SetUp() override {
    const absl::Status has = stagecoach::testing::HasOnCpu(precision());
    if (!has.ok()) GTEST_SKIP() << has.message();
  }
  const std::string& name() const { return std::get<0>(GetParam()); }
  Precision precision() const { return std::get<1>(GetParam()); }

  std::unique_ptr<Trainer> ForGeneration(PlanOptions plan, int64_t sequences = 1) const {
    plan.device.precision = precision();
    return fixture_.ForGeneration(plan, sequences);
  }

  // Expects logits within the bounds of transformers_test.cc: in fp32 that of both computations
  // against exact numbers, in bf16 that of the forward pass.
  void ExpectCloseLogits(absl::Span<const float> actual, absl::Span<const float> expected,
                         const std::string& what) const {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    const double bound =
        precision() == Precision::kFloat32
            ? 2e-5
            : (4 * 6 + 4) *
                  stagecoach::testing::PrecisionOf(kernels::DType::kBfloat16).unit_roundoff;
    double largest = 0.0;
    for (const float value : expected) largest = std::max<double>(largest, std::fabs(value));
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], bound * largest) << what << ", id " << i;
    }
  }

  const FixtureModel fixture_{name()};
  const std::vector<int32_t> ids_ = SomeIds(fixture_);

  std::vector<float> LogitsOfTheWhole() const {
    const auto data =
        TokenDataset::Create(TokenIds::Of(ids_).value(), fixture_.context(), fixture_.vocabulary())
            .value();
    return fixture_.TrainerOf(fixture_.model(), {.predicts = true})->Predict(*data).value();
  }
};

TEST_P(Generators, GiveTheLogitsOfTheWholeSequenceAtEveryPosition) {
  const std::vector<float> whole = LogitsOfTheWhole();
  const auto trainer = ForGeneration({.devices = 2});
  ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
  const auto vocabulary = static_cast<size_t>(fixture_.vocabulary());
  for (size_t t = 0; t < static_cast<size_t>(fixture_.context()); ++t) {
    ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits, generator.Append({ids_[t]}));
    ExpectCloseLogits(logits, absl::MakeConstSpan(whole).subspan(t * vocabulary, vocabulary),
                      absl::StrCat("position ", t));
  }
}

// The samples of a micro-batch, and micro-batches, are then positions that pass together.
TEST_P(Generators, TakeSeveralPositionsAtATime) {
  const std::vector<float> whole = LogitsOfTheWhole();
  const auto vocabulary = static_cast<size_t>(fixture_.vocabulary());
  const auto context = static_cast<size_t>(fixture_.context());
  for (const int64_t rows : {1, 3}) {
    const auto trainer =
        ForGeneration({.devices = 2, .micro_batches = 2, .micro_batch_rows = rows});
    ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
    size_t begin = 0;
    for (const size_t end : {size_t{1}, context / 2, context / 2 + 1, context}) {
      ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits,
                           generator.Append(absl::MakeConstSpan(ids_).subspan(begin, end - begin)));
      ExpectCloseLogits(logits,
                        absl::MakeConstSpan(whole).subspan((end - 1) * vocabulary, vocabulary),
                        absl::StrCat(rows, " rows, position ", end - 1));
      begin = end;
    }
  }
}

// This covers a prompt as well, however many of its positions pass at once.
TEST_P(Generators, GiveTheSameBitsForAnyStagesAndThreadsInTheMemoryThatWasPredicted) {
  for (const int64_t rows : {1, 3}) {
    std::vector<std::vector<float>> expected;
    for (const auto& [stages, threads] : {std::pair(1, 1), std::pair(2, 1), std::pair(3, 2)}) {
      PlanOptions plan = {.devices = stages, .micro_batch_rows = rows};
      plan.device.threads = threads;
      const auto trainer = ForGeneration(plan);
      ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
      std::vector<std::vector<float>> all;
      std::vector<int32_t> next(ids_.begin(), ids_.begin() + 5);
      while (generator.position() < generator.context()) {
        ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits, generator.Append(next));
        all.emplace_back(logits.begin(), logits.end());
        next = {ChooseToken(logits, {.temperature = 0.0}, generator.position()).value()};
      }
      if (expected.empty()) expected = all;
      EXPECT_EQ(all, expected) << stages << " stages, " << rows << " rows";
      ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
      for (const DeviceReport& device : devices) {
        EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
      }
    }
  }
}

TEST_P(Generators, ContinueAsTheyDoIdById) {
  const auto prompt = absl::MakeConstSpan(ids_).first(3);
  for (const PlanOptions& plan :
       {PlanOptions{}, PlanOptions{.devices = 3},
        PlanOptions{.devices = 2, .micro_batches = 2, .micro_batch_rows = 2}}) {
    const auto trainer = ForGeneration(plan);
    std::vector<int32_t> expected, next(prompt.begin(), prompt.end());
    std::vector<float> logits;  // after the fourth
    ASSERT_OK_AND_ASSIGN(Generator appending, Generator::Create(*trainer));
    while (appending.position() < appending.context()) {
      ASSERT_OK_AND_ASSIGN(const absl::Span<const float> own, appending.Append(next));
      if (expected.size() == 4) logits.assign(own.begin(), own.end());
      next = {ChooseToken(own, {.temperature = 0.0}, appending.position()).value()};
      expected.push_back(next.front());
    }
    std::vector<int32_t> given;
    const auto take = [&](int32_t id) {
      given.push_back(id);
      return given.size() != 4;
    };
    ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
    EXPECT_OK(generator.Continue(prompt, 2, take));
    EXPECT_EQ(given.size(), 2);
    EXPECT_EQ(generator.position(), 4);
    EXPECT_OK(generator.Continue({given.back()}, 1000, take));
    EXPECT_EQ(given.size(), 4);
    EXPECT_EQ(generator.position(), 6);
    // The positions computed beyond that are discarded.
    ASSERT_OK_AND_ASSIGN(const absl::Span<const float> own, generator.Append({given.back()}));
    EXPECT_EQ(std::vector<float>(own.begin(), own.end()), logits);
    given.push_back(ChooseToken(own, {.temperature = 0.0}, generator.position()).value());
    EXPECT_OK(generator.Continue({given.back()}, 1000, take));
    EXPECT_EQ(given, expected);
    EXPECT_EQ(generator.position(), generator.context());
  }
}

// Prompts of several lengths, in sequences that are used again when a text has come to its end,
// each at its own time. The last ids pass with one row to four, in one micro-batch or two.
TEST_P(Generators, ContinueSequencesTogetherWithTheBitsOfEachAlone) {
  constexpr size_t kTexts = 12;
  constexpr int64_t kRows = 4;  // positions of a prompt, or sequences, in a micro-batch
  struct Text {
    std::vector<int32_t> ids;
    std::vector<std::vector<float>> logits;
    size_t most = 0;
  };
  const auto begin = [&](size_t i) {
    const size_t first = i % 3, count = 1 + 3 * i % 5;
    return Text{.ids = {ids_.begin() + static_cast<int64_t>(first),
                        ids_.begin() + static_cast<int64_t>(first + count)},
                .logits = {},
                .most = 2 + i % 3};
  };
  // Whether it goes on.
  const auto take = [](absl::Span<const float> logits, Text& text) {
    text.logits.emplace_back(logits.begin(), logits.end());
    text.ids.push_back(ChooseToken(logits, {.temperature = 0.0}, std::ssize(text.ids)).value());
    return text.logits.size() < text.most;
  };
  std::vector<Text> alone;
  const auto single = ForGeneration({.micro_batch_rows = kRows});
  for (size_t i = 0; i < kTexts; ++i) {
    Generator generator = Generator::Create(*single).value();
    Text& text = alone.emplace_back(begin(i));
    std::vector<int32_t> next = text.ids;
    while (take(generator.Append(next).value(), text)) next = {text.ids.back()};
  }
  for (const auto& [stages, threads, sequences] :
       {std::tuple(1, 2, 7), std::tuple(3, 1, 7), std::tuple(3, 1, 3)}) {
    PlanOptions plan = {.devices = stages, .micro_batches = stages, .micro_batch_rows = kRows};
    plan.device.threads = threads;
    const auto trainer = ForGeneration(plan, sequences);
    ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
    EXPECT_EQ(generator.sequences(), sequences);
    std::vector<Text> texts;
    std::vector<std::optional<size_t>> texts_of(static_cast<size_t>(sequences));
    while (true) {
      std::vector<std::vector<int32_t>> next;
      std::vector<Generator::Addition> additions;
      for (int s = 0; s < sequences; ++s) {
        std::optional<size_t>& text = texts_of[static_cast<size_t>(s)];
        if (text.has_value()) {
          next.push_back({texts[*text].ids.back()});
        } else if (texts.size() < kTexts) {
          text = texts.size();
          next.push_back(texts.emplace_back(begin(*text)).ids);
          generator.Restart(s);
        } else {
          continue;
        }
        additions.push_back({.sequence = s});
      }
      if (additions.empty()) break;
      for (size_t i = 0; i < next.size(); ++i) additions[i].ids = next[i];
      ASSERT_OK_AND_ASSIGN(const auto logits, generator.AppendEach(additions));
      ASSERT_EQ(logits.size(), additions.size());
      for (size_t i = 0; i < logits.size(); ++i) {
        std::optional<size_t>& text = texts_of[static_cast<size_t>(additions[i].sequence)];
        EXPECT_EQ(generator.position(additions[i].sequence), std::ssize(texts[*text].ids));
        if (!take(logits[i], texts[*text])) text.reset();
      }
    }
    for (size_t i = 0; i < kTexts; ++i) {
      EXPECT_EQ(texts[i].ids, alone[i].ids) << stages << " stages, text " << i;
      EXPECT_EQ(texts[i].logits, alone[i].logits) << stages << " stages, text " << i;
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
    }
  }
}

// Neither gradients, nor states, nor, in bf16, a float32 copy. Positions that no sample has stay as
// they are.
TEST_P(Generators, KeepOfParametersWhatLayersReadAlone) {
  const auto trainer = ForGeneration({});
  const kernels::DType type =
      precision() == Precision::kFloat32 ? kernels::DType::kFloat32 : kernels::DType::kBfloat16;
  int64_t bytes = 0;
  for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
    const bool is_rounded = !parameter.update.is_average();
    bytes += partition::AlignTensor(parameter.shape.elements() *
                                    SizeOf(is_rounded ? type : kernels::DType::kFloat32));
  }
  const schedule::StageMemory& memory = trainer->run().compiled.stages.at(0).memory;
  EXPECT_EQ(memory.parameter_bytes, bytes);
  EXPECT_EQ(memory.gradient_bytes + memory.optimizer_bytes, 0);
  EXPECT_LT(memory.other_resident_bytes, bytes);
}

// Parameters are restored, with both tied ones on one device and on several, and read from the
// folder: the values of a checkpoint, rounded. Nothing is initialized before.
TEST_P(Generators, RestoreWhatFoldersHave) {
  const stagecoach::testing::TestFolder folder;
  const std::string run = (folder.path() / "run").string();
  const auto trained = fixture_.TrainerOf(fixture_.model(), {.devices = 2});
  ASSERT_OK(trained->Save(run));
  const Model model = ModelForGeneration(fixture_.model()).value();
  for (const int devices : {1, 3}) {
    PlanOptions plan = {.devices = devices, .predicts = true};
    plan.device.precision = precision();
    const auto trainer = Trainer::Create(PrepareRun(model, plan).value(),
                                         {.draws_parameters = false, .device = plan.device})
                             .value();
    for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
      EXPECT_THAT(trainer->Parameter(parameter.name).value(), ::testing::Each(0.0F));
    }
    ASSERT_OK(trainer->Restore(run));
    EXPECT_EQ(trainer->ParametersHash().value(), ForGeneration(plan)->ParametersHash().value());
    for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
      std::vector<float> expected = trained->Parameter(parameter.name).value();
      if (precision() == Precision::kBfloat16 && !parameter.update.is_average()) {
        for (float& value : expected) value = kernels::FromBfloat16(kernels::ToBfloat16(value));
      }
      EXPECT_EQ(trainer->Parameter(parameter.name).value(), expected) << parameter.name;
    }
  }
}

TEST_P(Generators, CountTheirCachesAsMemory) {
  const auto resident = [](const Trainer& trainer) {
    int64_t bytes = 0;
    for (const partition::LayerCost& layer : trainer.run().profile.layers) {
      bytes += layer.memory.cache_bytes;
    }
    return bytes;
  };
  const Transformer model =
      ReadHuggingFaceConfigFile(absl::StrCat(STAGECOACH_TEST_FIXTURES, "/transformers/", name()))
          .value();
  const int64_t floats = model.blocks * 2 * model.context * model.kv_heads * model.size_of_head();
  EXPECT_EQ(resident(*ForGeneration({})), 4 * floats);
  EXPECT_EQ(resident(*ForGeneration({.micro_batch_rows = 2}, 5)), 5 * 4 * floats);
  EXPECT_EQ(resident(*fixture_.TrainerOf(fixture_.model(), {.predicts = true})), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, Generators,
    ::testing::Combine(::testing::Values("gpt2", "llama", "llama_tied", "opt", "gpt_neox", "gemma2",
                                         "gemma3", "mistral", "qwen2", "llama_yarn",
                                         "phi3_longrope", "phi4_mini"),
                       ::testing::Values(Precision::kFloat32, Precision::kBfloat16)),
    [](const auto& test) {
      return absl::StrCat(std::get<0>(test.param),
                          std::get<1>(test.param) == Precision::kBfloat16 ? "_Bfloat16" : "");
    });

// Models of scaled positions, within their original context and beyond it.
TEST(Generator, ContinuesTextsAsTransformersDoes) {
  for (const char* const name :
       {"llama3", "llama_yarn", "llama_dynamic", "phi3_longrope", "phi4_mini", "gemma3"}) {
    const std::string file = FixtureModel(name).folder() + "/texts.json";
    const auto texts = nlohmann::json::parse(base::ReadFile(file, 1 << 20).value())["texts"];
    ASSERT_FALSE(texts.empty()) << name;
    for (const nlohmann::json& text : texts) {
      const FixtureModel fixture(name, text["context"]);
      const auto expected = text["ids"].get<std::vector<int32_t>>();
      std::vector<int32_t> ids(expected.begin(), expected.begin() + text["prompt"].get<int>());
      const auto trainer = fixture.ForGeneration({});
      ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
      const std::vector<int32_t> prompt = ids;
      ASSERT_OK(generator.Continue(prompt, 1000, [&](int32_t id) {
        ids.push_back(id);
        return true;
      }));
      EXPECT_EQ(ids, expected) << name << ", context " << fixture.context();
    }
  }
}

TEST(Generator, RefusesIdsThatItCannotTakeAndGoesOn) {
  const FixtureModel fixture("gpt2");
  const std::vector<int32_t> ids = SomeIds(fixture);
  const auto trainer = fixture.ForGeneration({});
  ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
  EXPECT_THAT(generator.Append({}), StatusIs(kInvalidArgument));
  for (const auto id : {int32_t{-1}, static_cast<int32_t>(fixture.vocabulary())}) {
    EXPECT_THAT(generator.Append({id}), IsRefused("vocabulary"));
  }
  EXPECT_THAT(generator.Append(ids), StatusIs(absl::StatusCode::kResourceExhausted, "no room"));
  EXPECT_EQ(generator.position(), 0);
  EXPECT_OK(generator.Append(absl::MakeConstSpan(ids).first(ids.size() - 1)));
  EXPECT_EQ(generator.position(), generator.context());
  EXPECT_THAT(generator.Append({0}),
              StatusIs(absl::StatusCode::kResourceExhausted, "no room for 1 more"));
}

TEST(Generator, RefusesSequencesThatThereAreNot) {
  const FixtureModel fixture("gpt2");
  const auto trainer = fixture.ForGeneration({.micro_batch_rows = 2}, 3);
  ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
  const std::vector<int32_t> ids = {1};
  using Addition = Generator::Addition;
  for (const int sequence : {-1, 3}) {
    EXPECT_THAT(generator.AppendEach({Addition{.sequence = sequence, .ids = ids}}),
                IsRefused("there is no sequence"));
  }
  EXPECT_THAT(generator.AppendEach({Addition{.sequence = 1, .ids = ids}, Addition{.ids = ids},
                                    Addition{.sequence = 1, .ids = ids}}),
              IsRefused("sequence 1 is there twice"));
  EXPECT_EQ(generator.position(1), 0);
  // More than a micro-batch has rows.
  ASSERT_OK_AND_ASSIGN(
      const auto logits,
      generator.AppendEach({Addition{.sequence = 2, .ids = ids}, Addition{.ids = ids},
                            Addition{.sequence = 1, .ids = ids}}));
  EXPECT_EQ(logits.size(), 3);
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_EQ(logits[0], logits[2]);
}

TEST(Generator, ContinuesAmongTheFirstIdsAndNotWithoutFiniteNumbers) {
  const FixtureModel fixture("gpt2");
  const std::vector<int32_t> ids = SomeIds(fixture);
  const auto trainer = fixture.ForGeneration({.devices = 2});
  const auto first = [&](int64_t choices) {
    Generator generator = Generator::Create(*trainer, choices).value();
    int32_t given = -2;
    EXPECT_OK(generator.Continue({ids[0], ids[1]}, 1, [&](int32_t id) {
      given = id;
      return true;
    }));
    return given;
  };
  const int32_t likeliest = first(0);
  ASSERT_GT(likeliest, 0);
  EXPECT_EQ(first(likeliest + 1), likeliest);
  EXPECT_LT(first(likeliest), likeliest);
  EXPECT_EQ(first(1), 0);
  EXPECT_THAT(Generator::Create(*trainer, fixture.vocabulary() + 1), StatusIs(kInvalidArgument));
  const std::string name = trainer->run().profile.parameters.all().front().name;
  std::vector<float> values = trainer->Parameter(name).value();
  values[0] = NAN;
  ASSERT_OK(trainer->SetParameter(name, values));
  Generator generator = Generator::Create(*trainer).value();
  EXPECT_THAT(generator.Continue({ids[0]}, 5, [](int32_t) { return true; }),
              IsRefused("at position 1 the model gives numbers that"));
}

Model OfSequences(std::vector<LayerFactory> layers) {
  return {.input = Shape{4}, .vocabulary = 5, .layers = std::move(layers)};
}

TEST(Generator, NeedsAModelAndAPlanForIt) {
  const LayerFactory embedding = Embedding({.vocabulary = 5, .features = 6});
  const auto created = [](const Model& model, const PlanOptions& options) {
    const auto trainer = Trainer::Create(PrepareRun(model, options).value(), {}).value();
    return Generator::Create(*trainer).status();
  };
  const Model model = OfSequences({embedding, Linear(5)});
  EXPECT_THAT(created(model, {.predicts = true}), IsRefused("ModelForGeneration"));
  const Model of_one = ModelForGeneration(model).value();
  EXPECT_OK(created(of_one, {.predicts = true}));
  const auto trainer = Trainer::Create(PrepareRun(of_one, {.predicts = true}).value(), {}).value();
  // The model's last layer does not compute the loss, and so does not choose tokens.
  Generator generator = Generator::Create(*trainer, 3).value();
  std::vector<int32_t> given;
  EXPECT_OK(generator.Continue({0, 1}, 100, [&](int32_t id) {
    given.push_back(id);
    return true;
  }));
  EXPECT_EQ(given.size(), 3);
  EXPECT_THAT(given, ::testing::Each(::testing::Lt(3)));
  EXPECT_THAT(created(of_one, {.replication = {2, 2}, .predicts = true, .micro_batches = 2}),
              IsRefused("one replica, not 2"));
  EXPECT_THAT(created(ModelForGeneration(OfSequences({embedding})).value(), {.predicts = true}),
              IsRefused("tells its 5 ids apart"));
  EXPECT_THAT(Trainer::Create(PrepareRun(of_one, PlanOptions{}).value(), {}),
              IsRefused("only predicts"));
}

TEST(ModelForGeneration, RefusesWhatHasNoPositionsOrMixesThem) {
  EXPECT_THAT(ModelForGeneration(SmallModel()), IsRefused("numbers"));
  const Model flat =
      OfSequences({Embedding({.vocabulary = 5, .features = 6}), Flatten(), Linear(5)});
  EXPECT_THAT(PrepareRun(ModelForGeneration(flat).value(), PlanOptions{.predicts = true}),
              IsRefused("layer 1: flatten: mixes the positions"));
}

}  // namespace
}  // namespace stagecoach::engine
