// OPT and GPT-NeoX as their config.json and names describe them; transformers_test.cc has what they
// compute.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "engine/models/hugging_face.h"
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
using ::testing::HasSubstr;

// Returns the config.json of a fixture with another value of one key.
std::string ChangedConfig(const std::string& fixture, const std::string& key,
                          const nlohmann::json& value) {
  const std::string path =
      absl::StrCat(STAGECOACH_TEST_FIXTURES, "/transformers/", fixture, "/config.json");
  nlohmann::json config = nlohmann::json::parse(base::ReadFile(path, 1 << 20).value());
  config[key] = value;
  return config.dump();
}

TEST(OptConfig, OfPublishedWeightsIsTheModelOfThatName) {
  ASSERT_OK_AND_ASSIGN(const Transformer model, ReadHuggingFaceConfig(R"({
      "_name_or_path": "facebook/opt-125m", "_remove_final_layer_norm": false,
      "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
      "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": true, "dropout": 0.1,
      "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
      "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12,
      "num_hidden_layers": 12, "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16",
      "transformers_version": "4.21.0.dev0", "use_cache": true, "vocab_size": 50272,
      "word_embed_proj_dim": 768})"));
  Transformer expected = NamedTransformer("opt-125m").value();
  expected.positions = 2048;
  EXPECT_EQ(model, expected) << HuggingFaceConfigOf(model);
  EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(model)).value(), model);
  EXPECT_EQ(HuggingFaceDropoutOf(R"({"model_type": "opt", "layerdrop": 0.5})").value(),
            "dropout 0.1, layerdrop 0.5");
}

TEST(GptNeoXConfig, OfPublishedWeightsIsTheModelOfThatName) {
  ASSERT_OK_AND_ASSIGN(const Transformer model, ReadHuggingFaceConfig(R"({
      "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
      "hidden_act": "gelu", "hidden_size": 768, "initializer_range": 0.02,
      "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
      "model_type": "gpt_neox", "num_attention_heads": 12, "num_hidden_layers": 12,
      "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
      "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": true,
      "use_parallel_residual": true, "vocab_size": 50304})"));
  EXPECT_EQ(model, NamedTransformer("pythia-160m").value()) << HuggingFaceConfigOf(model);
  EXPECT_EQ(model.rotary_size, 16);
}

// transformers rounds the share of a head down to a number.
TEST(GptNeoXConfig, HasTheShareOfEachHeadThatIsRotated) {
  for (const int64_t rotated : {0, 2, 6, 10, 22, 46}) {
    Transformer model = NamedTransformer("gpt_neox:width=96,heads=2").value();
    model.rotary_size = rotated;
    model.is_parallel = rotated % 4 == 0;
    model.activation = kernels::Activation::kRelu;
    EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(model)).value(), model) << rotated;
    EXPECT_EQ(TransformerOf(ModelFileOf(model)).value(), model) << rotated;
  }
}

// The heads have 8 numbers, of which the first 4 are rotated, in two halves, of which ours lie at
// the beginning of the head's own.
TEST(GptNeoXParameters, HaveQueriesKeysAndValuesInOurOrder) {
  const Transformer model =
      NamedTransformer("gpt_neox:blocks=1,width=16,heads=2,context=4,rotary_size=4").value();
  const std::vector<HuggingFaceParameter> parameters = HuggingFaceParametersOf(model);
  const HuggingFacePiece& weight = parameters[3].pieces.front();
  ASSERT_EQ(parameters[3].name, "layer 1: 1.weight");
  ASSERT_EQ(weight.tensor, "layers.0.attention.query_key_value.weight");
  const auto part = [&](size_t first) {
    return std::vector<int64_t>(weight.order.begin() + first, weight.order.begin() + first + 8);
  };
  EXPECT_THAT(part(0), ElementsAre(0, 1, 4, 5, 2, 3, 6, 7));          // queries of head 0
  EXPECT_THAT(part(8), ElementsAre(16, 17, 20, 21, 18, 19, 22, 23));  // its keys
  EXPECT_THAT(part(16), ElementsAre(32, 33, 34, 35, 36, 37, 38, 39));
  EXPECT_THAT(part(24), ElementsAre(8, 9, 12, 13, 10, 11, 14, 15));
  EXPECT_EQ(weight.EndOfRun(0), 2);
  EXPECT_EQ(weight.EndOfRun(16), 24);
}

TEST(GptNeoXFiles, MayHaveMasks) {
  const Transformer model = NamedTransformer("gpt_neox").value();
  for (const char* const name : {"layers.0.attention.bias", "layers.0.attention.masked_bias",
                                 "layers.0.attention.rotary_emb.inv_freq"}) {
    EXPECT_TRUE(IsHuggingFaceBuffer(model, name)) << name;
  }
  for (const char* const name : {"layers.0.attention.dense.bias", "embed_out.weight"}) {
    EXPECT_FALSE(IsHuggingFaceBuffer(model, name)) << name;
  }
  EXPECT_EQ(HuggingFaceTensorName(model, "embed_out.weight"), "embed_out.weight");
}

TEST(OptAndGptNeoXConfigs, WhatThereIsNoLayerForIsRefused) {
  using nlohmann::json;
  const Refusal<std::string> refusals[] = {
      {ChangedConfig("opt", "do_layer_norm_before", false), "$.do_layer_norm_before: is false"},
      {ChangedConfig("opt", "_remove_final_layer_norm", true), "$._remove_final_layer_norm"},
      {ChangedConfig("opt", "word_embed_proj_dim", 8), "$.word_embed_proj_dim: is 8"},
      {ChangedConfig("opt", "enable_bias", false), "$.enable_bias"},
      {ChangedConfig("opt", "layer_norm_elementwise_affine", false),
       "$.layer_norm_elementwise_affine"},
      {ChangedConfig("opt", "activation_function", "silu"),
       "$.activation_function: is \"silu\", expected one of \"relu\", \"gelu\""},
      {ChangedConfig("opt", "num_attention_heads", 3), "not a multiple of the 3 heads"},
      {ChangedConfig("opt", "layer_norm_eps", 1e-5), "unknown key \"layer_norm_eps\""},
      {ChangedConfig("gpt_neox", "attention_bias", false), "$.attention_bias"},
      {ChangedConfig("gpt_neox", "hidden_act", "quick_gelu"), "$.hidden_act"},
      {ChangedConfig("gpt_neox", "num_attention_heads", 3), "not a multiple of the 3 heads"},
      {ChangedConfig("gpt_neox", "rope_parameters", json{{"partial_rotary_factor", 0.4}}),
       "$.rotary_pct: rotates 3 of the 8 numbers of a head"},
      {ChangedConfig("gpt_neox", "rope_parameters", json{{"rope_type", "ntk"}}),
       "$.rope_parameters.rope_type"},
      {ChangedConfig("gpt_neox", "rope_theta", 1e4), "unknown key \"rope_theta\""},
  };
  ExpectRefusals(ReadHuggingFaceConfig, refusals);
}

TEST(OptAndGptNeoXNames, TakeTheOptionsOfTheirFamily) {
  for (const char* const name : {"opt:blocks=1,width=32,heads=2,tied=0", "gpt_neox",
                                 "gpt_neox:width=32,heads=4,parallel=0,rotary_base=100"}) {
    ASSERT_OK_AND_ASSIGN(const Transformer model, NamedTransformer(name));
    EXPECT_EQ(TransformerOf(ModelFileOf(model)).value(), model) << name;
  }
  const Refusal<const char*> refusals[] = {
      {"opt:parallel=1", "\"parallel\" is not known"},
      {"opt:norm_epsilon=1e-6", "that of OPT is 1e-5"},
      {"gpt_neox:head_size=8", "\"head_size\" is not known"},
      {"gpt_neox:width=32,heads=4,rotary_size=8", "expected an even number below the 8 of a head"},
  };
  ExpectRefusals(NamedTransformer, refusals);
  const Transformer model = NamedTransformer("gpt_neox").value();
  Transformer other = model;
  other.rotary_size = 32;
  EXPECT_THAT(DifferenceOf(model, other), HasSubstr("rotary_size 16 and 32"));
}

}  // namespace
}  // namespace stagecoach::engine
