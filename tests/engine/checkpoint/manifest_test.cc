#include "engine/checkpoint/manifest.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/generators/generators.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::Edited;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

Manifest Full() {
  Manifest manifest = {
      .program = "stagecoach 1.2.3",
      .saved_at = "2026-01-02T03:04:05Z",
      .step = 200,
      .samples = 25600,
      .position = {.epoch = 3,
                   .rows = 1280,
                   .loss_sum = 1.0 / 3.0,
                   .correct = 77,
                   .answers = 1279,
                   .losses_hash = "abc",
                   .metrics = Metrics{0.2, 0.5, 0.1, 1.0 / 7.0, {{"test_f1", 0.7}}},
                   .best_by = "test_accuracy",
                   .best = 0.1,
                   .evaluations_since_best = 3},
      .seed = std::numeric_limits<uint64_t>::max(),
      .optimizer = Optimizer::Sgd(0.3F),
      .device = "cpu",
      .precision = "fp32",
      .layers = {"linear 3 -> 4, \"quoted\"", "gelu"},
      .input = {3, 2},
      .output = {4},
      .loss = "cross-entropy",
      .model_source = "[[layer]]\ntype = \"linear\"\n",
      .encoding = {.mean = {0.1, -1e300, 0.0},
                   .stddev = {1.0 / 3.0, 0.0, 1.0},
                   .columns = {"x", "größe"},
                   .categories = {{}, {"klein", "XL"}},
                   .dropped_columns = {"id"},
                   .class_names = {"no", "yes"},
                   .label_mean = {-1e-300},
                   .label_stddev = {3.5}},
      .options = {{"--width", "4", true}, {"--data", "a b", false}}};
  manifest.optimizer.clip_norm = 0.1F;
  manifest.optimizer.ema_decay = 0.9F;
  manifest.plan.model = "default";
  manifest.plan.plan = {
      .first_layer = {0, 1},
      .num_layers = 2,
      .micro_batch_rows = 4,
      .schedule = schedule::Generate("1f1b", {.ranks = 2, .micro_batches = 3}).value()};
  manifest.files = {
      {.name = "layer-00000.safetensors",
       .bytes = 123,
       .hash = std::string(32, '0'),
       .tensors = {{.name = "layer 0: weight", .shape = {3, 4}, .hash = std::string(32, 'a')},
                   {.name = "layer 0: scale", .hash = std::string(32, '9')}}},
      {.name = "layer-00000.frozen.safetensors",
       .bytes = 9876,
       .hash = std::string(32, '7'),
       .tensors = {{.name = "layer 0: up",
                    .shape = {3, 5},
                    .quantized = {{kernels::Quantization::kNf4, 3, 5, {4, 1}}},
                    .hash = std::string(32, '8')},
                   {.name = "layer 0: down",
                    .shape = {5, 3},
                    .quantized = {{kernels::Quantization::kInt8, 5, 3}},
                    .hash = std::string(32, '6')}}},
      {.name = "layer-00000.optimizer.safetensors", .hash = std::string(32, 'f')}};
  return manifest;
}

TEST(ManifestJson, KeepsEverything) {
  const std::string text = ToJson(Full());
  ASSERT_OK_AND_ASSIGN(const Manifest parsed, ParseManifest(text));
  EXPECT_EQ(parsed, Full());
  EXPECT_EQ(ToJson(parsed), text);
  EXPECT_THAT(text, HasSubstr(R"({"name":"--width","value":"4","origin":"given"})"));
}

TEST(ManifestJson, KeepsLossesThatAreNotFinite) {
  Manifest manifest = Full();
  manifest.position.loss_sum = std::numeric_limits<double>::infinity();
  manifest.position.metrics->test_loss = std::nan("");
  ASSERT_OK_AND_ASSIGN(const Manifest parsed, ParseManifest(ToJson(manifest)));
  EXPECT_EQ(parsed.position.loss_sum, manifest.position.loss_sum);
  EXPECT_TRUE(std::isnan(parsed.position.metrics->test_loss));
}

// Older programs have written manifests this way.
TEST(ManifestJson, ReadsATestLossAlone) {
  const Metrics metrics = ParseDataPosition(R"({"epoch":2,"rows":0,"loss_sum":"0","correct":0,)"
                                            R"("losses_hash":"","test_loss":"0.5"})")
                              .value()
                              .metrics.value();
  EXPECT_EQ(metrics.test_loss, 0.5);
  EXPECT_TRUE(std::isnan(metrics.test_accuracy));
}

TEST(ManifestJson, KeepsWhatSeveralNumbersAre) {
  Manifest manifest = Full();
  manifest.encoding.label_names = {"price", "größe"};
  manifest.encoding.label_mean = {1e300, -0.1};
  manifest.encoding.label_stddev = {3.0, 1.0 / 3.0};
  const std::string text = ToJson(manifest);
  ASSERT_OK_AND_ASSIGN(const Manifest parsed, ParseManifest(text));
  EXPECT_EQ(parsed, manifest);
  EXPECT_THAT(ParseManifest(Edited(text, "'mean':[1e+300,-0.1]", "'mean':[1e+300]")),
              IsRefused("$.data.labels.names: has 2 elements, and mean has 1 and stddev 2"));
  EXPECT_THAT(ParseManifest(Edited(text, "'stddev':[3.0,", "'stddev':[0.0,")),
              IsRefused("$.data.labels.stddev[0]"));
}

TEST(ManifestJson, KeepsWhatTokensAre) {
  for (const bool are_bytes : {false, true}) {
    Manifest manifest = Full();
    manifest.encoding = {.vocabulary = 300,
                         .tokens_are_bytes = are_bytes,
                         .rows_move = are_bytes,
                         .tokenizer = are_bytes ? "" : "0123456789abcdef"};
    const std::string text = ToJson(manifest);
    ASSERT_OK_AND_ASSIGN(const Manifest parsed, ParseManifest(text));
    EXPECT_EQ(parsed, manifest);
    for (const char* bad : {"1", "-5", "16777217", "\"300\""}) {
      const std::string changed =
          absl::StrReplaceAll(text, {{"\"vocabulary\":300", absl::StrCat("\"vocabulary\":", bad)}});
      EXPECT_NE(changed, text);
      EXPECT_THAT(ParseManifest(changed), IsRefused("$.data.tokens.vocabulary"));
    }
  }
}

TEST(ManifestJson, KeepsFilesAlone) {
  const std::vector<SavedFile> files = Full().files;
  ASSERT_OK_AND_ASSIGN(const std::vector<SavedFile> parsed,
                       ParseSavedFiles(ToJson(absl::MakeConstSpan(files))));
  EXPECT_EQ(parsed, files);
  EXPECT_THAT(ParseSavedFiles("{}"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ManifestJson, TensorsMayFillTheirFile) {
  Manifest manifest = Full();
  manifest.files[0].bytes = (12 + 1) * 4;
  EXPECT_OK(ParseManifest(ToJson(manifest)).status());
}

// A file that was written before another optimizer was added does not have its hyper-parameters.
TEST(ManifestJson, MayLackHyperParametersOfOtherOptimizers) {
  const Manifest manifest = Full();
  const std::string without =
      absl::StrReplaceAll(ToJson(manifest), {{"\"beta1\":0.8999999761581421,", ""}});
  ASSERT_NE(without, ToJson(manifest));
  const auto parsed = ParseManifest(without);
  ASSERT_OK(parsed);
  EXPECT_EQ(parsed->optimizer, manifest.optimizer);
}

std::string With(const std::string& piece, const std::string& replacement) {
  return Edited(ToJson(Full()), piece, replacement);
}

TEST(ManifestJson, NamesWhatIsWrong) {
  const Refusal<std::string> refusals[] = {
      {With("stagecoach-checkpoint", "stagecoach-plan"), "$.format"},
      {With("'version': 1,\n  'program", "'version': 2,\n  'program"), "$.version"},
      {With("'step': 200", "'step': -1"), "$.step"},
      {With("'step': 200", "'steps': 200"), "step"},
      {With("'epoch':3", "'epoch':0"), "$.position.epoch"},
      {With("'rows':1280", "'rows':-1"), "$.position.rows"},
      {With("'losses_hash':'abc'", "'losses_hash':7"), "losses_hash"},
      {With("'correct':77", "'correct':77,'more':1"), "more"},
      {With("'test_loss':'0.1", "'test_loss':'x0.1"), "test_loss"},
      {With("'train_loss':'0.2", "'train_lost':'0.2"), "train_loss"},
      {With("'seed': '18446744073709551615'", "'seed': '-1'"), "$.seed"},
      {With("'name':'sgd'", "'name':'lion'"), "$.optimizer.name"},
      {With("'beta1':", "'beta9':"), "beta1"},
      {With("0.30000001192092896", "1e200"), "$.optimizer.momentum"},
      {With("'momentum':0.3", "'momentum':1.5"), "momentum is 1.5"},
      {With("'input': [3,2]", "'input': [3,-2]"), "$.input[1]"},
      {With("'input': [3,2]", "'input': [1,1,1,1,1]"), "dimensions"},
      {With("'shape':[3,4]", "'shape':[4294967296,4294967296]"), "shape[1]"},
      {With("'origin':'given'", "'origin':'guessed'"), "$.options[0].origin"},
      {With("'bytes':123", "'bytes':-123"), "$.files[0].bytes"},
      {With("'bytes':123", "'bytes':51"), "$.files[0].tensors"},
      {With("'quantized':'nf4'", "'quantized':'nf9'"), "$.files[1].tensors[0].quantized"},
      {With("'parts':[4,1]", "'parts':[4,2]"), "$.files[1].tensors[0].quantized"},
      {With("'parts':[4,1]", "'parts':[4,-1]"), "$.files[1].tensors[0].parts[1]"},
      {With("'shape':[5,3]", "'shape':[15]"), "$.files[1].tensors[1].shape"},
      {With("'bytes':9876", "'bytes':99"), "$.files[1].tensors"},
      {With("layer 0: scale", "layer 0: weight"), "$.files: layer-00000.safetensors"},
      {With("00000.optimizer.safetensors", "00000.safetensors"), "is there twice"},
      {With("'step': 200", "'step': 9223372036854775807"), "$.step"},
      {With(std::string(32, 'a'), std::string(31, 'a')), "$.files[0].tensors[0].hash"},
      {With(std::string(32, 'a'), std::string(32, 'A')), "32 hexadecimal digits"},
      {With("'first_layer':0", "'first_layer':1"), "$.stages[0]"},
      // The data's encoding, whose parts must fit together.
      {With("'mean':[0.1,", "'mean':[0.1,2,"),
       "$.data.mean: has 4 elements, and stddev 3: expected 3"},
      {With(",0.0,1.0]", "]"), "stddev 1: expected 3"},
      {With("['klein','XL']", "['klein']"), "expected 2"},
      {With("'größe':[", "'breite':["), "breite"},
      {With(",0.0,1.0]", ",-0.5,1.0]"), "$.data.stddev[1]"},
      {With("['no','yes']", "['no','no']"), "$.data.classes[1]: \"no\" is there twice"},
      {With("'columns':['x','größe']", "'columns':[]"), "$.data.categories"},
  };
  ExpectRefusals(ParseManifest, refusals);
}

TEST(ManifestJson, RefusesNamesThatLeadElsewhere) {
  for (const char* const name :
       {"/etc/layer.safetensors", "../layer.safetensors", "a/layer.safetensors",
        "..\\\\layer.safetensors", ".safetensors", ".hidden.safetensors", "passwd", "",
        "layer\\u0000.safetensors", "layer .safetensors", "manifest.json"}) {
    EXPECT_THAT(ParseManifest(With("layer-00000.safetensors", name)), IsRefused("$.files[0].name"))
        << name;
  }
}

}  // namespace
}  // namespace stagecoach::engine
