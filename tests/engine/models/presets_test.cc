#include "engine/models/presets.h"

#include <cstdint>
#include <string>

#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "engine/runtime/stage/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

int64_t ParametersOf(const Model& model) {
  const ModelProfile profile = AnalyzeModel(model, {.micro_batch_rows = 1}).value();
  int64_t parameters = 0;
  for (const partition::LayerCost& layer : profile.layers) parameters += layer.parameters;
  return parameters;
}

struct Known {
  const char* name;
  int64_t side, classes;
  int64_t parameters;  // as torchvision counts them, or the published number for the small ones
};

// The numbers are the published ones. Nothing is allocated.
TEST(Presets, HaveTheParametersThatTheyAreKnownFor) {
  constexpr Known kKnown[] = {{"resnet18", 224, 1000, 11'689'512},
                              {"resnet50", 224, 1000, 25'557'032},
                              {"resnet18-small", 32, 10, 11'173'962},
                              {"resnet50-small", 32, 10, 23'520'842}};
  for (const Known& known : kKnown) {
    SCOPED_TRACE(known.name);
    const Preset* const preset = FindPreset(known.name);
    ASSERT_NE(preset, nullptr);
    ASSERT_OK_AND_ASSIGN(
        const Model model,
        ParseModel(preset->text(), /*features=*/3 * known.side * known.side, known.classes));
    EXPECT_EQ(model.input, (Shape{3, known.side, known.side}));
    EXPECT_EQ(ParametersOf(model), known.parameters);
  }
  EXPECT_EQ(FindPreset("resnet19"), nullptr);
}

struct KnownTransformer {
  const char* name;
  int64_t vocabulary;
  int64_t parameters;  // of the published weights
};

TEST(Presets, OfTransformersHaveTheParametersThatTheyAreKnownFor) {
  constexpr KnownTransformer kKnown[] = {
      {"gpt2-124m", 50257, 124'439'808},      {"gpt2-1558m", 50257, 1'557'611'200},
      {"llama3.2-1b", 128256, 1'235'814'400}, {"llama3.2-3b", 128256, 3'212'749'824},
      {"llama3-8b", 128256, 8'030'261'248},   {"llama3-70b", 128256, 70'553'706'496},
      {"qwen2.5-0.5b", 151936, 494'032'768},  {"qwen2.5-1.5b", 151936, 1'543'714'304},
      {"qwen2.5-7b", 152064, 7'615'616'512},  {"qwen3-0.6b", 151936, 596'049'920},
      {"qwen3-8b", 151936, 8'190'735'360},    {"opt-125m", 50272, 125'239'296},
      {"opt-1.3b", 50272, 1'315'758'080},     {"opt-6.7b", 50272, 6'658'473'984},
      {"pythia-160m", 50304, 162'322'944},    {"pythia-1.4b", 50304, 1'414'647'808},
      {"pythia-6.9b", 50432, 6'857'302'016},  {"gemma2-2b", 256000, 2'614'341'888},
      {"gemma2-9b", 256000, 9'241'705'984},   {"gemma3-270m", 262144, 268'098'176},
      {"gemma3-1b", 262144, 999'885'952}};
  for (const KnownTransformer& known : kKnown) {
    SCOPED_TRACE(known.name);
    ASSERT_OK_AND_ASSIGN(Transformer published, NamedTransformer(known.name));
    EXPECT_EQ(published.vocabulary, known.vocabulary);
    // Fewer positions cost less to analyze; only some have parameters for them.
    if (published.is_rotary()) published.context = 16;
    const ModelData inputs = {.input = Shape{published.context},
                              .vocabulary = published.vocabulary,
                              .classes = published.vocabulary};
    ASSERT_OK_AND_ASSIGN(const Model model, ParseModel(ModelFileOf(published), inputs));
    // Positions that no sample has are none to train.
    const int64_t unread = published.position_offset() * published.width;
    EXPECT_EQ(ParametersOf(model), known.parameters - unread);
    EXPECT_EQ(TransformerOf(ModelFileOf(published)).value(), published);
  }
}

TEST(Presets, OfLlamaTakeOptions) {
  ASSERT_OK_AND_ASSIGN(
      const Transformer model,
      NamedTransformer("llama:width=64,heads=4,kv_heads=2,head_size=8,qkv_bias=1,qk_norm=1"));
  EXPECT_EQ(model.head_size, 8);
  EXPECT_TRUE(model.qkv_bias && model.qk_norm);
  EXPECT_EQ(TransformerOf(ModelFileOf(model)).value(), model);
  for (const char* const name : {"gpt2:head_size=8", "gpt2:qkv_bias=1", "gpt2:qk_norm=1",
                                 "llama:head_size=-1", "llama:head_size=x", "llama:qkv_bias=2"}) {
    EXPECT_THAT(NamedTransformer(name), StatusIs(absl::StatusCode::kInvalidArgument)) << name;
  }
}

TEST(Presets, OfLlamaMayHaveAWindow) {
  for (const char* const name : {"llama:window=16", "llama:qk_norm=1,window=16,global_first=11",
                                 "llama:qkv_bias=1,window=16,global_first=1"}) {
    ASSERT_OK_AND_ASSIGN(const Transformer model, NamedTransformer(name));
    EXPECT_EQ(TransformerOf(ModelFileOf(model)).value(), model) << name;
  }
  EXPECT_THAT(NamedTransformer("llama:window=-1"), IsRefused("window is -1"));
  EXPECT_THAT(NamedTransformer("llama:window=4,global_first=1"), IsRefused("an option of a Llama"));
  EXPECT_THAT(NamedTransformer("llama:qk_norm=1,global_first=1"), IsRefused("global_first is 1"));
  EXPECT_THAT(NamedTransformer("llama:qk_norm=1,window=4,global_first=12"),
              IsRefused("less than the 12 blocks"));
  EXPECT_THAT(NamedTransformer("llama:qk_norm=1,qkv_bias=1,window=4"), IsRefused("no model"));
}

TEST(Presets, OfLlamaAreCheckedBeforeTheyAreMade) {
  Transformer model = NamedTransformer("llama3.2-1b").value();
  model.rotary_scaling.factor = 0.5;
  EXPECT_THAT(CheckTransformer(model), IsRefused("cannot be scaled by 0.5"));
  model = NamedTransformer("gpt2-124m").value();
  model.rotary_scaling.factor = 2.0;
  EXPECT_THAT(CheckTransformer(model), IsRefused("options of Llama, not of GPT-2"));
}

// The scaling shows in no tensor's shape.
TEST(Presets, OfTransformersDifferInWhatNoShapeShows) {
  const Transformer model = NamedTransformer("llama3.2-1b").value();
  Transformer other = model;
  EXPECT_EQ(DifferenceOf(model, other), "");
  other.rotary_scaling.factor = 8.0;
  EXPECT_THAT(DifferenceOf(model, other), HasSubstr("rotary_scaling"));
  other = model;
  other.qkv_bias = true;
  EXPECT_EQ(DifferenceOf(model, other), "qkv_bias 0 and 1");
  other = model;
  other.qk_norm = true;
  EXPECT_EQ(DifferenceOf(model, other), "qk_norm 0 and 1");
}

TEST(Presets, OfImagesTakeOtherSquareImages) {
  const std::string text = FindPreset("resnet18-small")->text();
  EXPECT_EQ(ParseModel(text, 28 * 28, 10)->input, (Shape{1, 28, 28}));
  EXPECT_THAT(ParseModel(text, 3 * 32 * 48, 10), IsRefused("no square image"));
}

}  // namespace
}  // namespace stagecoach::engine
