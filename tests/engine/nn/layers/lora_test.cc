#include "engine/nn/parsing/lora.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text/toml.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::Refusal;
using ::testing::ElementsAre;

TEST(ParseLora, ReadsItsOptions) {
  ASSERT_OK_AND_ASSIGN(const LoraOptions least, ParseLora("rank=4"));
  EXPECT_EQ(least, (LoraOptions{.rank = 4, .alpha = 8.0}));
  EXPECT_FLOAT_EQ(least.scale(), 2.0F);
  ASSERT_OK_AND_ASSIGN(const LoraOptions all,
                       ParseLora("rank=9,alpha=6,dropout=0.25,rslora=1,targets=q_proj+v_proj,"
                                 "train=norms+embedding"));
  EXPECT_EQ(all, (LoraOptions{.rank = 9,
                              .alpha = 6.0,
                              .is_rank_stabilized = true,
                              .dropout = 0.25,
                              .targets = {"q_proj", "v_proj"},
                              .trained = {"embedding", "norms"}}));
  EXPECT_FLOAT_EQ(all.scale(), 2.0F);
  EXPECT_EQ(ParseLora("rank=1,targets=all").value().targets, std::vector<std::string>());
}

TEST(ParseLora, RefusesOthers) {
  const Refusal<const char*> refusals[] = {
      {"", "expected a rank, such as rank=16"},
      {"alpha=3", "expected a rank"},
      {"rank=x", "rank=x: expected a number"},
      {"rank=0", "rank is 0, expected 1 to 4096"},
      {"rank=4097", "expected 1 to 4096"},
      {"rank=4,alpha=0", "alpha is 0, expected a number above 0"},
      {"rank=4,alpha=nan", "alpha is nan"},
      {"rank=4,dropout=1", "dropout is 1, expected one in [0, 1)"},
      {"rank=4,dropout=-0.1", "dropout is -0.1"},
      {"rank=4,rslora=maybe", "rslora=maybe: expected 0 or 1"},
      {"rank=4,targets=", "a target has no name"},
      {"rank=4,train=", "train: \"\" is not known, expected one of embedding, head, norms"},
      {"rank=4,train=head+norm",
       "\"norm\" is not known, expected one of embedding, head, norms; did "
       "you mean \"norms\"?"},
      {"rank=4,rnak=4",
       "\"rnak\" is not known, expected one of rank, alpha, dropout, rslora, "
       "targets, train; did you mean \"rank\"?"},
  };
  ExpectRefusals(ParseLora, refusals);
}

TEST(LoraTable, ComesBack) {
  for (const char* const text :
       {"rank=4",
        "rank=9,alpha=6.5,dropout=0.25,rslora=1,targets=q_proj+v_proj,train=embedding+head"}) {
    ASSERT_OK_AND_ASSIGN(const LoraOptions options, ParseLora(text));
    EXPECT_EQ(LoraOf(LoraTableOf(options)).value(), options);
    EXPECT_EQ(ParseLora(LoraTextOf(options)).value(), options);
  }
  EXPECT_EQ(LoraOf("context = 4").value(), std::nullopt);
}

TEST(LoraTable, RefusesOthers) {
  const Refusal<const char*> refusals[] = {
      {"lora = 3", "$.lora: expected an object"},
      {"[lora]\nalpha = 3", "$.lora: the key \"rank\" is missing"},
      {"[lora]\nrank = 0", "$.lora.rank: must be from 1 to 4096, found 0"},
      {"[lora]\nrank = 1\nalpha = 0", "$.lora: alpha is 0"},
      {"[lora]\nrank = 1\ndropout = 1.5", "$.lora: dropout is 1.5"},
      {"[lora]\nrank = 1\ntargets = [1]", "$.lora.targets: expected names of layers"},
      {"[lora]\nrank = 1\ntrain = [1]", "$.lora.train: expected names of layers"},
      {"[lora]\nrank = 1\ntrain = [\"all\"]", "$.lora: train: \"all\" is not known"},
      {"[lora]\nrank = 1\ntarget = []",
       "$.lora: unknown key \"target\"; did you mean \"targets\"?"},
  };
  ExpectRefusals([](const char* toml) { return LoraOf(toml).status(); }, refusals);
}

std::vector<std::string> PartsIn(const nlohmann::json& list, size_t i, int64_t outputs) {
  std::vector<std::string> parts;
  for (const AdaptedOutputs& part : AdaptedOutputsOf(list, i, outputs)) {
    parts.push_back(absl::StrCat(part.name, " ", part.first, "+", part.outputs));
  }
  return parts;
}

// The parts of all linear layers of a model's first block.
std::vector<std::string> PartsOf(const std::string& model) {
  const nlohmann::json document =
      base::ParseToml(ModelFileOf(NamedTransformer(model).value())).value();
  std::vector<std::string> all;
  for (const nlohmann::json& residual : document["layer"][1]["layers"]) {
    const nlohmann::json& list = residual["layers"];
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i]["type"] != "linear") continue;
      const auto parts = PartsIn(list, i, list[i]["outputs"]);
      all.insert(all.end(), parts.begin(), parts.end());
    }
  }
  return all;
}

TEST(AdaptedOutputs, AreNamedByWhatIsBesideTheirLayer) {
  EXPECT_THAT(PartsOf("llama:blocks=1,width=32,heads=8,kv_heads=2,hidden=40,context=4,qk_norm=1"),
              ElementsAre("q_proj 0+32", "k_proj 32+8", "v_proj 40+8", "o_proj 0+32",
                          "gate_proj 0+40", "up_proj 40+40", "down_proj 0+32"));
  EXPECT_THAT(PartsOf("gpt2:blocks=1,width=8,heads=2,context=4"),
              ElementsAre("c_attn 0+24", "c_proj 0+8", "c_fc 0+32", "c_proj 0+8"));
  EXPECT_THAT(PartsOf("opt:blocks=1,width=8,heads=2,context=4"),
              ElementsAre("q_proj 0+8", "k_proj 8+8", "v_proj 16+8", "out_proj 0+8", "fc1 0+32",
                          "fc2 0+8"));
  EXPECT_THAT(
      PartsOf("gpt_neox:blocks=1,width=8,heads=2,context=4,rotary_size=2,parallel=0"),
      ElementsAre("query_key_value 0+24", "dense 0+8", "dense_h_to_4h 0+32", "dense_4h_to_h 0+8"));
  const nlohmann::json list = base::ParseToml(R"(
      layer = [{ type = "linear", outputs = 3 }, { type = "linear", outputs = 3 },
               { type = "linear", outputs = 3, activation = "relu" }, { type = "flatten" }])")
                                  .value()["layer"];
  for (const size_t i : {0, 1, 2}) EXPECT_THAT(PartsIn(list, i, 3), ElementsAre("linear 0+3"));
}

std::string WithLora(const std::string& lora) {
  return "[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n[lora]\nrank = 1\n" + lora;
}

TEST(LoraTargets, AreLinearLayersOfTheModel) {
  EXPECT_OK(ParseModel(WithLora("targets = [\"linear\"]"), 4, 2));
  const Refusal<std::string> refusals[] = {
      {"[[layer]]\ntype = \"linear\"\noutputs = 5\nparts = [\"a\", \"b\"]",
       "layer[0].parts: has 2 names, which do not divide 5 outputs"},
      {"[[layer]]\ntype = \"linear\"\noutputs = 5\nparts = [1]", "layer[0].parts[0]"},
      {WithLora("targets = [\"q_proj\"]"),
       "$.lora: the model has no linear layer \"q_proj\"; it has linear"},
      {WithLora("train = [\"norms\"]"), "$.lora: train: the model has no layer that is \"norms\""},
      {"[[layer]]\ntype = \"layer_norm\"\n" + WithLora("train = [\"head\"]"),
       "train: the model has no layer that is \"head\"; it has norms"},
      {"input = \"image\"\n[[layer]]\ntype = \"flatten\"\n" + WithLora(""),
       "is for models of tokens or of numbers, not of images"},
      {"[[layer]]\ntype = \"layer_norm\"\n[lora]\nrank = 1\n",
       "the model has no linear layer to adapt"},
  };
  ExpectRefusals([](const std::string& toml) { return ParseModel(toml, 4, 2); }, refusals);
}

}  // namespace
}  // namespace stagecoach::engine
