// Gemma 1, 2 and 3 as their config.json and names describe them; transformers_test.cc has what they
// compute.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/models/hugging_face.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::nlohmann::json;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::HasSubstr;

std::string FolderOf(const std::string& fixture) {
  return absl::StrCat(STAGECOACH_TEST_FIXTURES, "/transformers/", fixture);
}

// Returns the config.json of a fixture with other values of some keys.
std::string ChangedConfig(const std::string& fixture, const json& changes) {
  json config = json::parse(base::ReadFile(FolderOf(fixture) + "/config.json", 1 << 20).value());
  config.update(changes);
  return config.dump();
}

TEST(GemmaConfig, OfPublishedWeightsIsTheModelOfThatName) {
  const std::string third = R"({
      "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid",
      "eos_token_id": 1, "final_logit_softcapping": null, "head_dim": 256,
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
      "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
      "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
      "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
      "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
      "transformers_version": "4.50.0.dev0", "use_cache": true, "vocab_size": 262144})";
  const std::string second = R"({
      "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
      "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
      "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
      "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
      "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
      "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
      "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.0.dev0",
      "use_cache": true, "vocab_size": 256000})";
  for (const auto& [name, text] : {std::pair("gemma3-1b", third), std::pair("gemma2-2b", second)}) {
    ASSERT_OK_AND_ASSIGN(const Transformer model, ReadHuggingFaceConfig(text));
    EXPECT_EQ(model, NamedTransformer(name).value()) << HuggingFaceConfigOf(model);
  }
  for (const char* const name :
       {"gemma2-2b", "gemma2-9b", "gemma3-270m", "gemma3-1b", "gemma",
        "gemma:width=64,heads=4,head_size=8,post_norms=0,qk_norm=0,kv_heads=2,tied=0",
        "gemma:blocks=5,width=64,qk_norm=0,score_cap=20,logit_cap=10,global_every=2",
        "gemma:blocks=3,width=64,query_scalar=168,window=4,global_every=0,local_rotary_base=0",
        "gemma:blocks=3,width=64,window=0,logit_cap=5"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(Transformer model, NamedTransformer(name));
    if (model.end_of_text.empty()) model.end_of_text = {1};
    EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(model)).value(), model)
        << HuggingFaceConfigOf(model);
    EXPECT_EQ(TransformerOf(ModelFileOf(model)).value(), model) << ModelFileOf(model);
  }
}

// Gemma 3 of 4 billion parameters and more scales the positions of layers without a window.
TEST(GemmaConfig, HasPositionsOfBothKindsOfLayers) {
  const Transformer scaled = ReadHuggingFaceConfig(ChangedConfig("gemma3", json::object())).value();
  EXPECT_EQ(scaled.rotary_base, 1000.0);
  EXPECT_EQ(scaled.rotary_scaling.factor, 8.0);
  EXPECT_EQ(scaled.local_rotary_base, 100.0);
  EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(scaled)).value(), scaled);
  EXPECT_EQ(TransformerOf(ModelFileOf(scaled)).value(), scaled);
  const std::string old =
      ChangedConfig("gemma3", {{"rope_parameters", nullptr},
                               {"rope_theta", 1000},
                               {"rope_local_base_freq", 100},
                               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  EXPECT_EQ(ReadHuggingFaceConfig(old).value(), scaled);
  const Transformer usual =
      ReadHuggingFaceConfig(ChangedConfig("gemma3", {{"rope_parameters", nullptr}})).value();
  EXPECT_EQ(usual.rotary_base, 1e6);
  EXPECT_EQ(usual.local_rotary_base, 1e4);
  const json local = {"sliding_attention", "sliding_attention", "sliding_attention"};
  const Transformer all =
      ReadHuggingFaceConfig(ChangedConfig("gemma3", {{"layer_types", local}})).value();
  EXPECT_EQ(all.rotary_base, 100.0);
  EXPECT_EQ(all.local_rotary_base, 0.0);
  EXPECT_TRUE(all.rotary_scaling.is_none());
  EXPECT_EQ(TransformerOf(ModelFileOf(all)).value(), all);
}

TEST(GemmaConfig, SaysWhichLayersHaveAWindow) {
  const auto model = [](const json& changes) {
    return ReadHuggingFaceConfig(ChangedConfig("gemma3", changes)).value();
  };
  EXPECT_EQ(model(json::object()).window, 5);
  EXPECT_EQ(model(json::object()).global_every, 2);
  EXPECT_EQ(model({{"layer_types", nullptr}}).global_every, 0) << "there are fewer layers than 6";
  EXPECT_EQ(model({{"layer_types", nullptr}, {"sliding_window_pattern", 3}}).global_every, 3);
  const Transformer whole =
      model({{"layer_types", {"full_attention", "full_attention", "full_attention"}}});
  EXPECT_EQ(whole.window, 0);
  EXPECT_EQ(whole.local_rotary_base, 0.0);
  EXPECT_EQ(TransformerOf(ModelFileOf(whole)).value(), whole);
  EXPECT_EQ(ReadHuggingFaceConfig(HuggingFaceConfigOf(whole)).value(), whole);
}

// The first weights of Gemma said "gelu", and are of its tanh form.
TEST(GemmaConfig, OfTheFirstMayNameItsActivationWrongly) {
  const Transformer model = ReadHuggingFaceConfig(ChangedConfig("gemma", json::object())).value();
  for (const json& changes : {json{{"hidden_act", "gelu"}}, json{{"hidden_activation", nullptr}}}) {
    EXPECT_EQ(ReadHuggingFaceConfig(ChangedConfig("gemma", changes)).value(), model);
  }
}

TEST(GemmaConfig, WhatThereIsNoLayerForIsRefused) {
  const auto changed = [](const char* fixture, const json& changes) {
    return ChangedConfig(fixture, changes);
  };
  const json rotation = {{"rope_type", "linear"}, {"factor", 2.0}};
  const Refusal<std::string> refusals[] = {
      {R"({"model_type": "gemma3"})", "$.model_type: is \"gemma3\", expected"},
      {changed("gemma", {{"hidden_act", "silu"}}), "$.hidden_act: is \"silu\""},
      {changed("gemma3", {{"hidden_activation", "gelu"}}), "$.hidden_activation: is \"gelu\""},
      {changed("gemma", {{"attention_bias", true}}), "$.attention_bias"},
      {changed("gemma2", {{"use_bidirectional_attention", true}}), "$.use_bidirectional_attention"},
      {changed("gemma3", {{"attn_logit_softcapping", 50.0}}), "$.attn_logit_softcapping: is 50"},
      {changed("gemma2", {{"attn_logit_softcapping", 0.0}}), "$.attn_logit_softcapping"},
      {changed("gemma2", {{"final_logit_softcapping", "x"}}), "$.final_logit_softcapping"},
      {changed("gemma3", {{"layer_types", {"full_attention"}}}),
       "$.layer_types: has 1 types, expected 3"},
      {changed("gemma3",
               {{"layer_types", {"full_attention", "sliding_attention", "full_attention"}}}),
       "$.layer_types: has layers with a window behind one without"},
      {changed("gemma3",
               {{"layer_types", {"sliding_attention", "chunked_attention", "full_attention"}}}),
       "$.layer_types[1]: is \"chunked_attention\""},
      {changed("gemma3", {{"sliding_window", nullptr}}), "$.sliding_window: is null"},
      {changed("gemma3", {{"rope_parameters", {{"sliding_attention", rotation}}}}),
       "$.rope_parameters.sliding_attention: scales positions"},
      {changed("gemma3", {{"rope_parameters", {{"rope_theta", 1.0}}}}), "unknown key"},
      {changed("gemma2", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
       "partial_rotary_factor"},
      {changed("gemma", {{"sliding_window", 4}}), "unknown key \"sliding_window\""},
      {changed("gemma2", {{"sliding_window_pattern", 2}}),
       "unknown key \"sliding_window_pattern\""},
      {changed("gemma3", {{"num_key_value_heads", 3}}), "4 heads cannot share 3"},
  };
  ExpectRefusals(ReadHuggingFaceConfig, refusals);
}

TEST(GemmaNames, TakeTheOptionsThatGoTogether) {
  const Refusal<const char*> refusals[] = {
      {"gpt2:window=4", "\"window\" is not known"},
      {"gemma:global_first=2", "\"global_first\" is not known"},
      {"gemma:qkv_bias=1", "\"qkv_bias\" is not known"},
      {"gemma:score_cap=50", "score_cap is an option of Gemma 2"},
      {"gemma:post_norms=0", "options of Gemma 2 and 3"},
      {"gemma:qk_norm=0,local_rotary_base=100", "local_rotary_base is an option of Gemma 3"},
      {"gemma:global_every=13", "global_every is 13, expected 2 to the 12"},
      {"gemma:window=-1", "window is -1"},
      {"gemma:local_rotary_base=0.5", "local_rotary_base is 0.5"},
      {"gemma:logit_cap=-2", "logit_cap is -2"},
  };
  ExpectRefusals(NamedTransformer, refusals);
  Transformer model = NamedTransformer("gemma").value();
  model.local_rotary_base = 0.0;
  model.rotary_scaling.factor = 8.0;
  EXPECT_THAT(CheckTransformer(model), IsRefused("give their local_rotary_base"));
  model = NamedTransformer("gemma").value();
  Transformer other = model;
  other.window = 4;
  EXPECT_THAT(DifferenceOf(model, other), HasSubstr("window 512 and 4"));
  model = NamedTransformer("llama").value();
  model.logit_cap = 4.0;
  EXPECT_THAT(CheckTransformer(model), IsRefused("options of Gemma, not of Llama"));
}

// Every number of a file of bfloat16 that is not tiny comes back from the sum with 1.
TEST(GemmaFiles, HaveGainsLessOne) {
  const Transformer model = ReadHuggingFaceConfigFile(FolderOf("gemma3")).value();
  ASSERT_OK_AND_ASSIGN(const HuggingFaceFolder folder,
                       HuggingFaceFolder::Open(FolderOf("gemma3"), model));
  const HuggingFaceParameter* gain = nullptr;
  const std::vector<HuggingFaceParameter> parameters = HuggingFaceParametersOf(model);
  for (const HuggingFaceParameter& parameter : parameters) {
    const HuggingFacePiece& piece = parameter.pieces.front();
    EXPECT_EQ(piece.offset, parameter.name.ends_with("gamma") ? 1.0F : 0.0F) << parameter.name;
    if (parameter.name == "layer 1: 5.gamma") gain = &parameter;
  }
  ASSERT_NE(gain, nullptr);
  EXPECT_EQ(gain->pieces.front().tensor, "layers.0.post_attention_layernorm.weight");
  std::vector<float> values(16);
  std::vector<kernels::Bfloat16> rounded(16);
  ASSERT_OK(folder.Read({.name = gain->name}, kernels::Float32(values.data(), {16})));
  kernels::Tensor in_bfloat16 = kernels::Float32(nullptr, {16});
  in_bfloat16.data = rounded.data();
  in_bfloat16.dtype = kernels::DType::kBfloat16;
  ASSERT_OK(folder.Read({.name = gain->name}, in_bfloat16));
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(float{rounded[i]}, float{kernels::Bfloat16(values[i])});
    sum += values[i] / 16.0;
  }
  EXPECT_NEAR(sum, 1.0, 0.3) << "theirs are about 0";
  for (const float weight : {0.0F, 0.1F, -0.3F, 1.5F, -0.9F, 1e-4F}) {
    const float stored = kernels::Bfloat16(weight);
    EXPECT_EQ(float{kernels::Bfloat16((1.0F + stored) - 1.0F)}, stored) << weight;
  }
}

}  // namespace
}  // namespace stagecoach::engine
