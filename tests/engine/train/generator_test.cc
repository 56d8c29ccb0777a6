#include "engine/train/generator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/data/tokens.h"
#include "engine/model/layers/attention.h"
#include "engine/model/layers/embedding.h"
#include "engine/model/layers/flatten.h"
#include "engine/model/layers/linear.h"
#include "engine/model/model_file.h"
#include "engine/model/transformer.h"
#include "engine/train/token_choice.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "partition/layer_cost.h"
#include "tests/engine/train/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kInvalidArgument;
using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

// A model of the fixtures of transformers_test.cc, with its parameters.
class FixtureModel {
 public:
  explicit FixtureModel(const std::string& name)
      : folder_(absl::StrCat(STAGECOACH_TEST_FIXTURES, "/transformers/", name)),
        transformer_(ReadHuggingFaceConfigFile(folder_).value()) {}

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
    EXPECT_OK(trainer->SetParameters([&](const std::string& name, const kernels::Tensor& values) {
      return folder.Read(name, values);
    }));
    return trainer;
  }
  std::unique_ptr<Trainer> ForGeneration(PlanOptions plan) const {
    plan.predicts = true;
    return TrainerOf(ModelForGeneration(model()).value(), plan);
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

  std::unique_ptr<Trainer> ForGeneration(PlanOptions plan) const {
    plan.device.precision = precision();
    return fixture_.ForGeneration(plan);
  }

  // By the bounds of transformers_test.cc: in fp32 that of both ways of computing against exact
  // numbers, in bf16 that of the forward pass.
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

// Rows of a micro-batch, and micro-batches, are then positions that pass together.
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

TEST_P(Generators, GiveTheSameBitsForAnyStagesAndThreadsInTheMemoryThatWasPredicted) {
  std::vector<std::vector<float>> expected;
  for (const auto& [stages, threads] : {std::pair(1, 1), std::pair(2, 1), std::pair(3, 2)}) {
    PlanOptions plan = {.devices = stages};
    plan.device.threads = threads;
    const auto trainer = ForGeneration(plan);
    ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
    std::vector<std::vector<float>> all;
    int32_t next = ids_[0];
    while (generator.position() < generator.context()) {
      ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits, generator.Append({next}));
      all.emplace_back(logits.begin(), logits.end());
      next = ChooseToken(logits, {.temperature = 0.0}, generator.position()).value();
    }
    if (expected.empty()) expected = all;
    EXPECT_EQ(all, expected) << stages << " stages";
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
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
    // What was computed beyond that is as if it had not been.
    ASSERT_OK_AND_ASSIGN(const absl::Span<const float> own, generator.Append({given.back()}));
    EXPECT_EQ(std::vector<float>(own.begin(), own.end()), logits);
    given.push_back(ChooseToken(own, {.temperature = 0.0}, generator.position()).value());
    EXPECT_OK(generator.Continue({given.back()}, 1000, take));
    EXPECT_EQ(given, expected);
    EXPECT_EQ(generator.position(), generator.context());
  }
}

// Neither gradients, nor states, nor, in bf16, a float32 copy.
TEST_P(Generators, KeepOfParametersWhatLayersReadAlone) {
  const auto trainer = ForGeneration({});
  const kernels::DType type =
      precision() == Precision::kFloat32 ? kernels::DType::kFloat32 : kernels::DType::kBfloat16;
  int64_t bytes = 0;
  for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
    bytes += partition::AlignTensor(parameter.shape.elements() * SizeOf(type));
  }
  const schedule::StageMemory& memory = trainer->run().report.stages.at(0).memory;
  EXPECT_EQ(memory.parameter_bytes, bytes);
  EXPECT_EQ(memory.gradient_bytes + memory.optimizer_bytes, 0);
  EXPECT_LT(memory.other_resident_bytes, bytes);
}

// Parameters that are restored, on one device with both of those that are tied and on several, and
// those that are read of the folder: what a checkpoint has, rounded. Nothing is drawn before.
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
      if (precision() == Precision::kBfloat16) {
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
  const int64_t floats =
      model.blocks * 2 * model.context * model.kv_heads * (model.width / model.heads);
  EXPECT_EQ(resident(*ForGeneration({})), 4 * floats);
  EXPECT_EQ(resident(*fixture_.TrainerOf(fixture_.model(), {.predicts = true})), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Generators,
                         ::testing::Combine(::testing::Values("gpt2", "llama", "llama_tied"),
                                            ::testing::Values(Precision::kFloat32,
                                                              Precision::kBfloat16)),
                         [](const auto& test) {
                           return absl::StrCat(
                               std::get<0>(test.param),
                               std::get<1>(test.param) == Precision::kBfloat16 ? "_Bfloat16" : "");
                         });

TEST(Generator, RefusesIdsThatItCannotTakeAndGoesOn) {
  const FixtureModel fixture("gpt2");
  const std::vector<int32_t> ids = SomeIds(fixture);
  const auto trainer = fixture.ForGeneration({});
  ASSERT_OK_AND_ASSIGN(Generator generator, Generator::Create(*trainer));
  EXPECT_THAT(generator.Append({}), StatusIs(kInvalidArgument));
  for (const auto id : {int32_t{-1}, static_cast<int32_t>(fixture.vocabulary())}) {
    EXPECT_THAT(generator.Append({id}), StatusIs(kInvalidArgument, HasSubstr("vocabulary")));
  }
  EXPECT_THAT(generator.Append(ids),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no room")));
  EXPECT_EQ(generator.position(), 0);
  EXPECT_OK(generator.Append(absl::MakeConstSpan(ids).first(ids.size() - 1)));
  EXPECT_EQ(generator.position(), generator.context());
  EXPECT_THAT(generator.Append({0}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no room for 1 more")));
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
              StatusIs(kInvalidArgument, HasSubstr("at position 1 the model gives numbers that")));
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
  EXPECT_THAT(created(model, {.predicts = true}),
              StatusIs(kInvalidArgument, HasSubstr("ModelForGeneration")));
  const Model of_one = ModelForGeneration(model).value();
  EXPECT_OK(created(of_one, {.predicts = true}));
  const auto trainer = Trainer::Create(PrepareRun(of_one, {.predicts = true}).value(), {}).value();
  // One whose last layer is none that computes the loss, and so does not choose.
  Generator generator = Generator::Create(*trainer, 3).value();
  std::vector<int32_t> given;
  EXPECT_OK(generator.Continue({0, 1}, 100, [&](int32_t id) {
    given.push_back(id);
    return true;
  }));
  EXPECT_EQ(given.size(), 3);
  EXPECT_THAT(given, ::testing::Each(::testing::Lt(3)));
  EXPECT_THAT(created(of_one, {.replication = {2, 2}, .predicts = true, .micro_batches = 2}),
              StatusIs(kInvalidArgument, HasSubstr("one replica, not 2")));
  EXPECT_THAT(created(ModelForGeneration(OfSequences({embedding})).value(), {.predicts = true}),
              StatusIs(kInvalidArgument, HasSubstr("tells its 5 ids apart")));
  EXPECT_THAT(Trainer::Create(PrepareRun(of_one, PlanOptions{}).value(), {}),
              StatusIs(kInvalidArgument, HasSubstr("only predicts")));
}

TEST(ModelForGeneration, RefusesWhatHasNoPositionsOrMixesThem) {
  EXPECT_THAT(ModelForGeneration(SmallModel()), StatusIs(kInvalidArgument, HasSubstr("numbers")));
  const Model flat =
      OfSequences({Embedding({.vocabulary = 5, .features = 6}), Flatten(), Linear(5)});
  EXPECT_THAT(PrepareRun(ModelForGeneration(flat).value(), PlanOptions{.predicts = true}),
              StatusIs(kInvalidArgument, HasSubstr("layer 1: flatten: mixes the positions")));
}

}  // namespace
}  // namespace stagecoach::engine
