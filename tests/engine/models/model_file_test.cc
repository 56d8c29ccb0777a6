#include "engine/models/model_file.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/sequential.h"
#include "engine/runtime/stage/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using stagecoach::testing::StatusIs;
using stagecoach::testing::TestDevice;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kFeatures = 20;
constexpr int64_t kClasses = 3;

// Returns the layers' descriptions.
std::vector<std::string> Describe(const Model& model) {
  auto profile = AnalyzeModel(model, {});
  if (!profile.ok()) return {profile.status().ToString()};
  std::vector<std::string> names;
  for (const partition::LayerCost& layer : profile->layers) names.push_back(layer.name);
  return names;
}

std::string NameOfLoss(const Model& model) {
  auto profile = AnalyzeModel(model, {});
  return profile.ok() ? profile->loss_spec.description : profile.status().ToString();
}

absl::StatusOr<Model> Parse(const std::string& toml) {
  return ParseModel(toml, kFeatures, kClasses);
}

// Returns the lines of a layer.
std::string LayerLines(const std::string& type, const std::string& options = "") {
  return absl::StrCat("[[layer]]\ntype = \"", type, "\"\n", options, "\n");
}

const char kHead[] = "[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n";

TEST(ModelFile, ReadsEveryLayerTypeInOrder) {
  ASSERT_OK_AND_ASSIGN(const Model model, Parse(R"(
[[layer]]
type = "linear"
outputs = 8
activation = "relu"

[[layer]]
type = "residual"
layers = [{ type = "layer_norm", epsilon = 1e-3 },
          { type = "linear", outputs = 8, activation = "gelu" }]

[[layer]]
type = "branches"
branches = [[{ type = "linear", outputs = 6 }],
            [{ type = "layer_norm" }, { type = "linear", outputs = 6, repeat = 2 }]]

[[layer]]
type = "linear"
outputs = "classes"
)"));
  EXPECT_THAT(Describe(model),
              ElementsAre("linear 20 -> 8, relu",
                          AllOf(StartsWith("residual("), HasSubstr("linear 8 -> 8, gelu")),
                          "branches(linear 8 -> 6 | layer norm 8; linear 8 -> 6; linear 6 -> 6)",
                          "linear 6 -> 3"));
}

// Returns the layers' descriptions where the data are ids.
std::vector<std::string> DescribeOfIds(const Model& model) {
  TestDevice device;
  std::vector<std::string> names;
  const absl::Status status = device.Run([&](kernels::Stream&) -> absl::Status {
    const LayerContext context{.device = device.device(),
                               .rows = 2,
                               .input = model.input,
                               .vocabulary = 11,
                               .feeds_cross_entropy = true};
    ASSIGN_OR_RETURN(const Sequential chain, Sequential::Prepare(model.layers, context, 0));
    for (int i = 0; i < chain.size(); ++i) names.push_back(chain.spec(i).description);
    return absl::OkStatus();
  });
  if (!status.ok()) return {status.ToString()};
  return names;
}

TEST(ModelFile, ReadsTheLayersOfATransformer) {
  ASSERT_OK_AND_ASSIGN(const Model model, Parse(R"(
layer = [
  { type = "embedding", vocabulary = 11, features = 8, positions = true },
  { type = "dropout", rate = 0.125 },
  { type = "residual", layers = [
      { type = "linear", outputs = 16 },
      { type = "attention", heads = 2, kv_heads = 1, rotary_base = 1e4, rotary_scaling.factor = 4.0 },
      { type = "rms_norm", epsilon = 1e-6 },
      { type = "linear", outputs = 12, bias = false },
      { type = "swiglu" },
      { type = "linear", outputs = 8, bias = false, activation = "gelu_exact" } ] },
  { type = "linear", outputs = 12 },
  { type = "swiglu", repeat = 2 },
  { type = "tanh" },
  { type = "sigmoid" },
  { type = "gelu" },
  { type = "gelu_exact" },
]
)"));
  EXPECT_THAT(
      DescribeOfIds(model),
      ElementsAre("embedding 11 -> 8, 20 positions", "dropout 0.125",
                  "residual(linear 8 -> 16; attention 2 x 4, 1 kv heads, rotary 10000 scaled by "
                  "4; rms norm "
                  "8, epsilon 1e-06; linear 8 -> 12, no bias; swiglu 12 -> 6; "
                  "linear 6 -> 8, gelu_exact, no bias)",
                  "linear 8 -> 12", "swiglu 12 -> 6", "swiglu 6 -> 3", "tanh", "sigmoid", "gelu",
                  "gelu_exact"));
}

TEST(ModelFile, AHeadGivesTheClassesOfTheData) {
  ASSERT_OK_AND_ASSIGN(const Model model,
                       Parse("[[layer]]\ntype = \"embedding\"\nvocabulary = 11\nfeatures = 8\n"
                             "[[layer]]\ntype = \"head\"\ndeviation = 0.5\n"));
  EXPECT_THAT(DescribeOfIds(model),
              ElementsAre("embedding 11 -> 8", absl::StrCat("head 8 -> ", kClasses)));
}

TEST(ModelFile, AnEmbeddingIsOfTheDataUnlessItSaysOtherwise) {
  ASSERT_OK_AND_ASSIGN(
      const Model model,
      Parse("[[layer]]\ntype = \"embedding\"\nvocabulary = \"classes\"\nfeatures = 3\n"
            "token_deviation = 0.5\n"));
  TestDevice device;
  ASSERT_OK_AND_ASSIGN(
      const LayerSpec spec,
      model.layers[0]()->Prepare({.device = device.device(), .rows = 2, .input = model.input}));
  EXPECT_EQ(spec.description, "embedding 3 -> 3");
  EXPECT_EQ(spec.parameters[0].init, Init::Normal(0.0F, 0.5F));
}

// AnalyzeModel decides whether it fits.
TEST(ModelFile, ALayerThatDoesNotFitIsNotTakenForTheLast) {
  EXPECT_OK(Parse(std::string("[[layer]]\ntype = \"linear\"\noutputs = 4\n"
                              "[[layer]]\ntype = \"attention\"\nheads = 12\n") +
                  kHead));
}

TEST(ModelFile, TakesTheInputFromTheData) {
  ASSERT_OK_AND_ASSIGN(const Model model, Parse(kHead));
  EXPECT_EQ(model.input, Shape{kFeatures});
}

TEST(ModelFile, LossIsCrossEntropyUnlessNamed) {
  ASSERT_OK_AND_ASSIGN(const Model usual, Parse(kHead));
  EXPECT_EQ(NameOfLoss(usual), "softmax cross-entropy of 3 classes");
  ASSERT_OK_AND_ASSIGN(const Model squared,
                       Parse(std::string("loss = \"mean_squared_error\"\n") + kHead));
  EXPECT_EQ(NameOfLoss(squared), "mean squared error of 3 classes");
}

TEST(ModelFile, SkipsReadLayersByName) {
  ASSERT_OK_AND_ASSIGN(const Model model, Parse(R"(
layer = [
  { type = "linear", outputs = 8, name = "outer" },
  { type = "linear", outputs = 8, repeat = 2, name = "inner" },
  { type = "linear", outputs = 8 },
  { type = "add_skip", from = "inner" },
  { type = "concat_skip", from = "outer" },
  { type = "swiglu" },
  { type = "linear", outputs = "classes" },
]
)"));
  EXPECT_THAT(model.skips, ElementsAre(Skip{2, 4}, Skip{0, 5}));
  EXPECT_EQ(AnalyzeModel(model, {}).value().inputs[6], Shape{16});
}

TEST(ModelFile, AConcatenationIsAsWideAsBoth) {
  ASSERT_OK_AND_ASSIGN(const Model model, Parse(R"(
layer = [{ type = "linear", outputs = 2, name = "two" }, { type = "linear", outputs = 1 },
         { type = "concat_skip", from = "two" }]
)"));
  EXPECT_THAT(model.skips, ElementsAre(Skip{0, 2}));
}

TEST(ModelFile, RepeatsLayers) {
  ASSERT_OK_AND_ASSIGN(
      const Model model,
      Parse(std::string("[[layer]]\ntype = \"linear\"\noutputs = 5\nrepeat = 3\n") + kHead));
  EXPECT_THAT(Describe(model),
              ElementsAre("linear 20 -> 5", "linear 5 -> 5", "linear 5 -> 5", "linear 5 -> 3"));
}

TEST(ModelFile, RepeatsSequences) {
  ASSERT_OK_AND_ASSIGN(const Model model,
                       Parse(std::string("[[layer]]\ntype = \"sequence\"\nrepeat = 2\n"
                                         "layers = [{ type = \"linear\", outputs = 8 },\n"
                                         "          { type = \"swiglu\", repeat = 2 }]\n") +
                             kHead));
  EXPECT_THAT(Describe(model),
              ElementsAre("linear 20 -> 8", "swiglu 8 -> 4", "swiglu 4 -> 2", "linear 2 -> 8",
                          "swiglu 8 -> 4", "swiglu 4 -> 2", "linear 2 -> 3"));
}

TEST(ModelFile, RepeatsInsideResidual) {
  ASSERT_OK_AND_ASSIGN(
      const Model model,
      Parse(std::string("[[layer]]\ntype = \"residual\"\n"
                        "layers = [{ type = \"linear\", outputs = 20, repeat = 2 }]\n") +
            kHead));
  EXPECT_THAT(Describe(model),
              ElementsAre("residual(linear 20 -> 20; linear 20 -> 20)", "linear 20 -> 3"));
}

TEST(ModelFile, SaysWhereAndWhatIsWrong) {
  const Refusal<std::string> refusals[] = {
      // The file as a whole.
      {"[[layer]]\ntype = \n", StartsWith("2:")},
      {"", "\"layer\" is missing"},
      {"layer = []\n", "last layer"},
      {std::string("layers = 3\n") + kHead, "layers"},
      {std::string("context = 8\n") + kHead,
       "$.context: is for a model of tokens, but the data has numbers"},
      {std::string("vocabulary = 8\n") + kHead, "$.vocabulary: is for"},
      {std::string("loss = \"mean_square_error\"\n") + kHead,
       "did you mean \"mean_squared_error\"?"},
      // Names, with the nearest or the known ones.
      {absl::StrCat(kHead, "\n", LayerLines("liner", "outputs = 4")),
       AllOf(StartsWith("6:1: $.layer[1].type: "), HasSubstr("\"liner\""),
             HasSubstr("did you mean \"linear\"?"))},
      {"layer = [\n{ type = \"liner\" }]\n", StartsWith("2:3: $.layer[0].type: ")},
      {LayerLines("residual", "layers = [{ type = \"pooling\" }]"),
       AllOf(StartsWith("3:13: $.layer[0].layers[0].type: "), HasSubstr("\"pooling\""),
             HasSubstr("linear, layer_norm, rms_norm, residual, branches, tensor_blocks, sequence, "
                       "embedding, attention, head_norm, swiglu, geglu, dropout"))},
      {LayerLines("linear", "outputs = 3\nactivatoin = \"relu\""),
       AllOf(StartsWith("4:1: $.layer[0]: "), HasSubstr("activatoin"),
             HasSubstr("\"activation\""))},
      {LayerLines("linear", "outputs = 3\nactivation = \"swish\""),
       "none, relu, gelu, gelu_exact, tanh, sigmoid"},
      // Options and their ranges.
      {LayerLines("linear", "outputs = 0"), "layer[0].outputs"},
      {LayerLines("linear", "outputs = \"features\""), "expected a number or \"classes\""},
      {LayerLines("linear", "outputs = 3\nbias = 1"), "layer[0].bias"},
      {LayerLines("branches"), "\"branches\" is missing"},
      {LayerLines("branches", "branches = []"),
       "layer[0].branches: expected at least one array of layers"},
      {LayerLines("branches", "branches = [[{ type = \"relu\" }], []]"),
       "layer[0].branches[1]: expected at least one layer"},
      {LayerLines("branches", "branches = [{ type = \"relu\" }]"), "layer[0].branches[0]"},
      {LayerLines("branches", "branches = [[{ type = \"relu\" }, { type = \"rleu\" }]]"),
       "layer[0].branches[0][1].type"},
      {LayerLines("dropout", "rate = 1.0"), "layer[0].rate"},
      {LayerLines("dropout"), "\"rate\" is missing"},
      {LayerLines("embedding", "vocabulary = \"words\"\nfeatures = 3"),
       "expected a number or \"classes\""},
      {LayerLines("embedding", "vocabulary = 3\nfeatures = 0"), "layer[0].features"},
      {LayerLines("head", "deviation = -1.0"), "layer[0].deviation"},
      {LayerLines("attention"), "\"heads\" is missing"},
      {LayerLines("head_norm"), "\"heads\" is missing"},
      {LayerLines("head_norm", "heads = 2\nepsilon = 0.0"), "layer[0].epsilon"},
      {LayerLines("attention", "heads = 2\nrotary_base = -1.0"), "layer[0].rotary_base"},
      {LayerLines("attention", "heads = 2\nrotary_base = 0.5"), "expected at least 1, or 0"},
      {LayerLines("attention", "heads = 2\nrotary_scaling = {}"), "\"factor\" is missing"},
      {LayerLines("attention", "heads = 2\nrotary_scaling.factor = 0.5"), "rotary_scaling.factor"},
      {LayerLines("attention", "heads = 2\nrotary_scaling = { factor = 2.0, context = 5 }"),
       "unknown key \"context\""},
      {LayerLines("attention", "heads = 2\nrotary_scaling = { factor = 2.0, low_turns = 4.0 }"),
       "rotary_scaling.low_turns: rotary positions cannot be scaled between 4 and 4 turns"},
      {LayerLines("attention", "heads = 2\nrotary_scaling = { type = \"ntk\" }"),
       "rotary_scaling.type"},
      {LayerLines("attention", "heads = 2\nrotary_scaling = { type = \"yarn\", factor = 2.0 }"),
       "\"original_context\" is missing"},
      {LayerLines("attention",
                  "heads = 2\nrotary_scaling = { type = \"longrope\", "
                  "original_context = 4, divisors = [1.0], long_divisors = [] }"),
       "rotary_scaling.divisors: rotary positions cannot be scaled by 1 short and 0 long divisors"},
      {LayerLines("attention",
                  "heads = 2\nrotary_scaling = { type = \"longrope\", "
                  "original_context = 4, divisors = [0.0], long_divisors = [1.0] }"),
       "rotary positions cannot be divided by 0"},
      {LayerLines("attention",
                  "heads = 2\nrotary_scaling = { type = \"dynamic\", factor = 2.0, "
                  "original_context = 4, scale = 2.0 }"),
       "unknown key \"scale\""},
      // One output for each class. Attention has as many as the queries have.
      {LayerLines("linear", "outputs = 4"), AllOf(HasSubstr("3 classes"), HasSubstr("give 4"))},
      {LayerLines("linear", "outputs = 4") + LayerLines("swiglu"), "give 2"},
      {LayerLines("linear", "outputs = 16") + LayerLines("attention", "heads = 2"), "give 4"},
      {LayerLines("linear", "outputs = 16") + LayerLines("attention", "heads = 2\nkv_heads = 1"),
       "give 8"},
      {LayerLines("sequence",
                  "repeat = 2\nlayers = [{ type = \"linear\", outputs = 8 },"
                  " { type = \"swiglu\", repeat = 2 }]"),
       "give 2"},
      {LayerLines("sequence",
                  "repeat = 200\nlayers = [{ type = \"linear\", outputs = 8, repeat = 60 }]"),
       "12000 layers"},
  };
  ExpectRefusals(Parse, refusals);
}

TEST(ModelFile, ErrorsOfSkipsSayWhere) {
  const auto second = [](const char* type, const char* options) {
    return LayerLines("linear", "outputs = 3\nname = \"a\"") + LayerLines(type, options);
  };
  const Refusal<std::string> refusals[] = {
      {second("add_skip", ""), "\"from\" is missing"},
      {second("add_skip", "from = \"b\""),
       "layer[1].from: no layer before this one is called \"b\", those with a name are [a]"},
      {second("add_skip", "from = \"\""), "layer[1].from: expected"},
      {second("relu", "name = \"a\""), "layer[1].name: an earlier"},
      {second("add_skip", "from = \"a\"\nrepeat = 2"), "layer[1].repeat"},
      {second("residual", "layers = [{ type = \"add_skip\", from = \"a\" }]"),
       "layers[0].from: a skip is between layers of the model"},
  };
  ExpectRefusals(Parse, refusals);
}

// In all, and through residuals, in which it multiplies.
TEST(ModelFile, RepetitionIsLimited) {
  const std::string norms = LayerLines("layer_norm", "repeat = 6000");
  const auto nested = [](const char* repeat) {
    return LayerLines("residual",
                      absl::StrCat("repeat = ", repeat,
                                   "\nlayers = [{ type = \"layer_norm\", repeat = 99 }]")) +
           kHead;
  };
  EXPECT_OK(Parse(norms + kHead));
  EXPECT_THAT(Parse(norms + norms + kHead), IsRefused("at most 10000"));
  EXPECT_OK(Parse(nested("99")));
  EXPECT_THAT(Parse(nested("100")), IsRefused(AllOf(HasSubstr("layer[1]"), HasSubstr("10001"))));
}

TEST(ModelFile, OfNumbersGivesOneOutputAndItsSquaredError) {
  const ModelData data = {.input = Shape{3}, .classes = 1, .has_numbers = true};
  const std::string one = "[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n";
  for (const char* loss : {"", "loss = \"mean_squared_error\"\n"}) {
    ASSERT_OK_AND_ASSIGN(const Model model, ParseModel(loss + one, data));
    EXPECT_FALSE(model.loss()->is_softmax_cross_entropy());
    ASSERT_OK_AND_ASSIGN(const auto profile, AnalyzeModel(model, {.micro_batch_rows = 4}));
    EXPECT_EQ(profile.loss_spec.target, TargetSpec{TargetSpec::Kind::kValues});
  }
  EXPECT_THAT(ParseModel("loss = \"softmax_cross_entropy\"\n" + one, data),
              IsRefused("labels are numbers: expected \"mean_squared_error\""));
  EXPECT_THAT(ParseModel("[[layer]]\ntype = \"linear\"\noutputs = 2\n", data),
              IsRefused("must give one output, the"));
}

TEST(ModelFile, ErrorsInFilesNameThem) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "model.toml";
  std::ofstream(path) << "[[layer]]\ntype = \"liner\"\n";
  EXPECT_THAT(ReadModelFile(path, kFeatures, kClasses), IsRefused(StartsWith(path + ":2:1: ")));
  std::filesystem::remove(path);
  EXPECT_THAT(ReadModelFile(path, kFeatures, kClasses),
              StatusIs(absl::StatusCode::kNotFound, path));
}

constexpr char kTokens[] = "context = 64\nvocabulary = 300\n";

TEST(ModelFile, SaysWhatTokensItIsFor) {
  ASSERT_OK_AND_ASSIGN(const ModelTokens none, ParseModelTokens(kHead));
  EXPECT_EQ(none.context, 0);
  EXPECT_EQ(none.vocabulary, 0);
  ASSERT_OK_AND_ASSIGN(const ModelTokens both, ParseModelTokens(std::string(kTokens) + kHead));
  EXPECT_EQ(both.context, 64);
  EXPECT_EQ(both.vocabulary, 300);
  for (const char* bad : {"context = 0", "context = \"x\"", "vocabulary = 1"}) {
    const std::string toml = absl::StrCat("\n", bad, "\n", kHead);
    EXPECT_THAT(ParseModelTokens(toml), IsRefused("2:1: $."));
    EXPECT_THAT(Parse(toml), IsRefused("2:1: $."));
  }
}

TEST(ModelFile, SaysWhatShapeItTakesOrLeavesItToTheData) {
  EXPECT_EQ(ParseModelInput(absl::StrCat("input = [9, 128, 1]\n", kHead)), (Shape{9, 128, 1}));
  for (const char* input : {"", "input = \"image\"\n", "input = [0, 2]\n", "input = [1.5]\n",
                            "input = [1, 2, 3, 4, 5]\n", "input = \n"}) {
    EXPECT_EQ(ParseModelInput(absl::StrCat(input, kHead)), Shape()) << input;
  }
}

TEST(ModelFile, IsForIdsWhereTheDataHasThem) {
  const SampleSpec spec = {
      .inputs = {{.type = kernels::DType::kInt32, .shape = Shape{5}, .vocabulary = 9}},
      .target = {.kind = TargetSpec::Kind::kClasses, .shape = Shape{5}, .classes = 9}};
  // The file's statement about tokens decides which data are loaded, and binds no other data.
  ASSERT_OK_AND_ASSIGN(const Model model,
                       ParseModel(std::string(kTokens) + kHead, ModelData::Of(spec)));
  EXPECT_EQ(model.input, Shape{5});
  EXPECT_TRUE(model.takes_ids());
  EXPECT_EQ(model.vocabulary, 9);
  ASSERT_OK_AND_ASSIGN(const Model other, Parse(kHead));
  EXPECT_FALSE(other.takes_ids());
}

}  // namespace
}  // namespace stagecoach::engine
