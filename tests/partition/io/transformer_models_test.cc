// Published models, from their config.json: parameters and flops are those of the papers.

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/io/transformer_file.h"
#include "partition/io/transformer_profile.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::Edited;
using ::stagecoach::testing::ExpectRefusals;
using ::testing::StartsWith;

// The config.json of a model as its authors publish it, and the number of values in its weights.
struct PublishedModel {
  std::string name;
  std::string config;
  int64_t parameters;
  double active_billions;  // those that a token uses
};

std::string LlamaConfig(int64_t hidden, int64_t mlp, int64_t heads, int64_t layers) {
  return absl::StrCat(
      R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
 "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": )",
      hidden, R"(, "initializer_range": 0.02, "intermediate_size": )", mlp,
      R"(, "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": )", heads,
      R"(, "num_hidden_layers": )", layers,
      R"(, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
 "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": false,
 "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": true,
 "vocab_size": 128256})");
}

std::string QwenConfig(int64_t hidden, int64_t mlp, int64_t heads, int64_t kv_heads, int64_t layers,
                       int64_t vocabulary, bool is_tied) {
  return absl::StrCat(
      R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
 "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": )",
      hidden, R"(, "initializer_range": 0.02, "intermediate_size": )", mlp,
      R"(, "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
 "num_attention_heads": )",
      heads, R"(, "num_hidden_layers": )", layers, R"(, "num_key_value_heads": )", kv_heads,
      R"(, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
 "tie_word_embeddings": )",
      is_tied ? "true" : "false",
      R"(, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
 "use_mrope": false, "use_sliding_window": false, "vocab_size": )",
      vocabulary, "}");
}

std::string Qwen3Config(int64_t hidden, int64_t mlp, int64_t heads, int64_t layers, bool is_tied) {
  return absl::StrCat(
      R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
 "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
 "hidden_size": )",
      hidden, R"(, "initializer_range": 0.02, "intermediate_size": )", mlp,
      R"(, "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
 "num_attention_heads": )",
      heads, R"(, "num_hidden_layers": )", layers,
      R"(, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
 "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": )",
      is_tied ? "true" : "false",
      R"(, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
 "use_sliding_window": false, "vocab_size": 151936})");
}

std::string Phi3Config() {
  return R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
 "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu",
 "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
 "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32,
 "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
 "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
 "rope_theta": 10000.0, "sliding_window": null, "tie_word_embeddings": false,
 "torch_dtype": "bfloat16", "transformers_version": "4.39.3", "use_cache": true,
 "vocab_size": 32064})";
}

// The lists of its divisors have 48 numbers.
std::string Phi4MiniConfig() {
  return R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
 "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1,
 "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
 "interpolate_factor": 1, "lm_head_bias": false, "max_position_embeddings": 131072,
 "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
 "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
 "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
 "rope_scaling": {"long_factor": [1.0], "short_factor": [1.0], "type": "longrope"},
 "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true,
 "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true,
 "vocab_size": 200064})";
}

std::string MixtralConfig(int64_t hidden, int64_t mlp, int64_t heads, int64_t layers) {
  return absl::StrCat(
      R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
 "eos_token_id": 2, "hidden_act": "silu", "hidden_size": )",
      hidden, R"(, "initializer_range": 0.02, "intermediate_size": )", mlp,
      R"(, "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": )",
      heads, R"(, "num_experts_per_tok": 2, "num_hidden_layers": )", layers,
      R"(, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
 "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
 "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
 "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000})");
}

constexpr absl::string_view kGpt2Config =
    R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
 "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
 "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
 "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
 "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
 "summary_use_proj": true, "vocab_size": 50257,
 "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}})";

// Returns the counts of the tensors in the published files; the active ones of Mixtral 8x7B are
// from Jiang et al. 2024.
std::vector<PublishedModel> Models() {
  return {{"Llama 3 8B", LlamaConfig(4096, 14336, 32, 32), 8'030'261'248, 8.0},
          {"Llama 3 70B", LlamaConfig(8192, 28672, 64, 80), 70'553'706'496, 70.6},
          {"Llama 3.1 405B", LlamaConfig(16384, 53248, 128, 126), 405'853'388'800, 405.9},
          {"Qwen 2.5 0.5B", QwenConfig(896, 4864, 14, 2, 24, 151936, true), 494'032'768, 0.5},
          {"Qwen 2.5 7B", QwenConfig(3584, 18944, 28, 4, 28, 152064, false), 7'615'616'512, 7.6},
          {"Qwen 3 8B", Qwen3Config(4096, 12288, 32, 36, false), 8'190'735'360, 8.2},
          {"Qwen 3 0.6B", Qwen3Config(1024, 3072, 16, 28, true), 596'049'920, 0.6},
          {"Phi 3 mini", Phi3Config(), 3'821'079'552, 3.8},
          {"Phi 4 mini", Phi4MiniConfig(), 3'836'021'760, 3.8},
          {"Mixtral 8x7B", MixtralConfig(4096, 14336, 32, 32), 46'702'792'704, 12.9},
          {"Mixtral 8x22B", MixtralConfig(6144, 16384, 48, 56), 140'620'634'112, 39.2},
          {"GPT-2", std::string(kGpt2Config), 124'439'808, 0.1}};
}

double FlopsOfAll(const Transformer& transformer) {
  double flops = 0;
  const Profile profile = TransformerProfile(transformer, "");
  for (const LayerCost& layer : profile.sizes[0].layers) flops += layer.flops;
  return flops;
}

TEST(TransformerModels, ParametersAreThosePublished) {
  for (const PublishedModel& model : Models()) {
    ASSERT_OK_AND_ASSIGN(const TransformerDescription description, ParseTransformer(model.config));
    const Transformer& t = description.transformer;
    EXPECT_EQ(Parameters(t), model.parameters) << model.name;
    EXPECT_EQ(std::round(static_cast<double>(ActiveParameters(t)) / 1e8) / 10,
              model.active_billions)
        << model.name;
    int64_t count = 0;
    const Profile profile = TransformerProfile(t, "");
    for (const LayerCost& layer : profile.sizes[0].layers) count += layer.parameters;
    EXPECT_EQ(count, model.parameters) << model.name;
  }
}

// In a description, its values override those of the model.
TEST(TransformerModels, OfGemmaHaveTheParametersPublished) {
  const std::string third = R"(
version = 1
model_type = "gemma3_text"
num_hidden_layers = 26
hidden_size = 1152
num_attention_heads = 4
num_key_value_heads = 1
intermediate_size = 6912
vocab_size = 262144
max_position_embeddings = 32768
sliding_window = 512
sliding_window_pattern = 6
query_pre_attn_scalar = 256
rope_local_base_freq = 10000
)";
  ASSERT_OK_AND_ASSIGN(const TransformerDescription gemma3,
                       ParseTransformer(third + "sequence = 512\n"));
  EXPECT_EQ(Parameters(gemma3.transformer), 999'885'952);
  EXPECT_EQ(gemma3.transformer.global_every, 6);
  ASSERT_OK_AND_ASSIGN(const TransformerDescription whole,
                       ParseTransformer(third + "window = 0\n"));
  EXPECT_EQ(whole.transformer.window, 0);
  ASSERT_OK_AND_ASSIGN(const TransformerDescription gemma2, ParseTransformer(R"(
version = 1
model_type = "gemma2"
num_hidden_layers = 26
hidden_size = 2304
num_attention_heads = 8
intermediate_size = 9216
vocab_size = 256000
sliding_window = 4096
final_logit_softcapping = 30.0
sequence = 4096
)"));
  EXPECT_EQ(Parameters(gemma2.transformer), 2'614'341'888);
  EXPECT_THAT(ParseTransformer(third + "use_bidirectional_attention = true\n"),
              testing::IsRefused("use_bidirectional_attention"));
}

// The layers with a window, of the same model in all spellings.
TEST(TransformerModels, HaveWindowsInTheLayersThatTheirFilesName) {
  const auto windows = [](const char* type, const std::string& more) {
    const Transformer t =
        ParseTransformer(absl::StrCat("version = 1\nlayers = 4\nhidden = 64\nheads = 32\n",
                                      "vocabulary = 8\nsequence = 4096\nmlp_hidden = 8\n",
                                      "model_type = \"", type, "\"\n", more))
            .value()
            .transformer;
    std::vector<int64_t> all;
    for (int64_t layer = 0; layer < t.layers; ++layer) {
      all.push_back(t.has_window(layer) ? t.window : 0);
    }
    return all;
  };
  using Windows = std::vector<int64_t>;
  const std::string listed =
      "sliding_window = 9\nlayer_types = [\"full_attention\", \"full_attention\", "
      "\"sliding_attention\", \"sliding_attention\"]\n";
  const std::string used = "use_sliding_window = true\nsliding_window = 9\n";
  EXPECT_EQ(windows("mistral", ""), (Windows{4096, 4096, 4096, 4096}));
  EXPECT_EQ(windows("mistral", "sliding_window = 9\n"), (Windows{9, 9, 9, 9}));
  EXPECT_EQ(windows("mixtral", ""), (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows("phi3", "sliding_window = 9\n"), (Windows{9, 9, 9, 9}));
  EXPECT_EQ(windows("qwen2", "sliding_window = 9\n"), (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows("qwen2", used), (Windows{0, 0, 0, 0})) << "28 layers have none";
  EXPECT_EQ(windows("qwen3", used + "max_window_layers = 1\n"), (Windows{0, 9, 9, 9}));
  EXPECT_EQ(windows("qwen3", "use_sliding_window = true\n" + listed), (Windows{0, 0, 9, 9}));
  EXPECT_EQ(windows("gemma2", "sliding_window = 9\n"), (Windows{9, 0, 9, 0}));
  EXPECT_EQ(windows("gemma3_text", "sliding_window = 9\nsliding_window_pattern = 3\n"),
            (Windows{9, 9, 0, 9}));
  EXPECT_EQ(windows("gemma3_text", "window = 5\nglobal_first = 1\nglobal_every = 2\n"),
            (Windows{0, 5, 0, 5}));
  EXPECT_THAT(ParseTransformer("version = 1\nlayers = 4\nhidden = 64\nheads = 32\nvocabulary = 8\n"
                               "sequence = 8\nmlp_hidden = 8\nmodel_type = \"qwen2\"\n" +
                               listed),
              testing::IsRefused("layer_types: has layers with a window, and there is none"));
}

// Each of the positions behind the window sees as many as the window has.
TEST(TransformerModels, ComputeWithAWindowWhatItSees) {
  ASSERT_OK_AND_ASSIGN(TransformerDescription description,
                       ParseTransformer(LlamaConfig(4096, 14336, 32, 32)));
  Transformer& t = description.transformer;
  t.sequence = 8;
  const Profile whole = TransformerProfile(t, "");
  t.window = 3;
  t.global_first = 1;
  const Profile windowed = TransformerProfile(t, "");
  const auto layer = [](const Profile& profile, size_t i) { return profile.sizes[0].layers[i]; };
  EXPECT_EQ(layer(windowed, 1).flops, layer(whole, 1).flops) << "the first has none";
  const double attention = 3.0 * 4 * 8 * 8 * 4096;
  EXPECT_NEAR(layer(whole, 2).flops - layer(windowed, 2).flops, attention * (1 - 21.0 / 36.0), 1.0);
  EXPECT_LT(layer(windowed, 2).forward_ns, layer(whole, 2).forward_ns);
  EXPECT_LT(layer(windowed, 2).backward_input_ns, layer(whole, 2).backward_input_ns);
  t.attention = Attention::kStored;
  const double stored = TransformerProfile(t, "").sizes[0].layers[2].flops;
  EXPECT_EQ(stored, layer(whole, 2).flops) << "which computes all, and keeps them";
}

// Two published formulas. Megatron-LM's (num_floating_point_operations of
// megatron/training/training.py) counts products, except the router's:
//   12 B s L h^2 ((1 + k / a + s / h) a d / h + g K f / h + V / (2 L h)), g = 3/2 for SwiGLU,
//   else 1.
// PaLM's (Chowdhery et al. 2022, appendix B) takes 6 for each parameter that a token uses, and 12 L
// a d s for attention; a table that is only looked up does not count.
TEST(TransformerModels, FlopsAreThosePublished) {
  for (const PublishedModel& model : Models()) {
    ASSERT_OK_AND_ASSIGN(TransformerDescription description, ParseTransformer(model.config));
    Transformer& t = description.transformer;
    t.micro_batch_rows = {3};
    const double tokens = 3.0 * static_cast<double>(t.sequence);
    const auto s = static_cast<double>(t.sequence), h = static_cast<double>(t.hidden);
    const auto l = static_cast<double>(t.layers), a = static_cast<double>(t.heads);
    const auto v = static_cast<double>(t.vocabulary);
    const auto queries = static_cast<double>(t.query_width());
    const bool is_gpt2 = model.name == "GPT-2";
    const double kv = is_gpt2 ? a : static_cast<double>(t.kv_heads);
    const double f = is_gpt2 ? 4 * h : static_cast<double>(t.mlp_hidden);
    const double gate = is_gpt2 ? 1 : 1.5, experts = t.experts > 0 ? 2 : 1;
    const double router = 6 * static_cast<double>(t.experts) * l * h * tokens;
    const double megatron =
        12 * tokens * l * h * h *
        ((1 + kv / a + s / h) * queries / h + gate * experts * f / h + v / (2 * l * h));
    EXPECT_NEAR((FlopsOfAll(t) - router) / megatron, 1, 1e-12) << model.name;

    const double tables = (t.tie_word_embeddings ? 0 : v * h) + (is_gpt2 ? 1024 * h : 0);
    const double palm =
        6 * (static_cast<double>(ActiveParameters(t)) - tables) + 12 * l * queries * s;
    EXPECT_NEAR(FlopsOfAll(t) / (palm * tokens), 1, 1.5e-3) << model.name << ": norms and biases";
  }
}

// Grattafiori et al. 2024, "The Llama 3 Herd of Models": 405B was trained with 3.8e25 flops on
// 15.6e12 tokens, excluding those of attention.
TEST(TransformerModels, Llama405BTookAsManyFlopsAsPublished) {
  ASSERT_OK_AND_ASSIGN(TransformerDescription description,
                       ParseTransformer(LlamaConfig(16384, 53248, 128, 126)));
  description.transformer.sequence = 1;
  EXPECT_EQ(std::round(FlopsOfAll(description.transformer) * 15.6e12 / 1e24) / 10, 3.8);
}

// ---- Files ----

TEST(TransformerConfig, FamiliesHaveWhatTheirFilesDoNotSay) {
  ASSERT_OK_AND_ASSIGN(const TransformerDescription llama,
                       ParseTransformer(LlamaConfig(4096, 14336, 32, 32)));
  const Transformer expected = {.layers = 32,
                                .hidden = 4096,
                                .heads = 32,
                                .sequence = 8192,
                                .vocabulary = 128256,
                                .kv_heads = 8,
                                .mlp_hidden = 14336,
                                .context = 8192,
                                .mlp = Mlp::kSwiGlu,
                                .norm = Norm::kRmsNorm,
                                .bias = Bias::kNone,
                                .positions = Positions::kRotary,
                                .tie_word_embeddings = false,
                                .dropout = false,
                                .attention = Attention::kFlash};
  EXPECT_EQ(llama,
            (TransformerDescription{.transformer = expected, .attentions = {Attention::kFlash}}));
  ASSERT_OK_AND_ASSIGN(const TransformerDescription gpt2, ParseTransformer(kGpt2Config));
  EXPECT_TRUE(gpt2.transformer.dropout);
  EXPECT_EQ(gpt2.transformer.bias, Bias::kAll);
  EXPECT_EQ(gpt2.transformer.mlp, Mlp::kGelu);
}

// The same model in either spelling, and in both within one TOML file.
TEST(TransformerConfig, KeysMayBeThoseOfEitherSpelling) {
  constexpr absl::string_view kOurs = R"(version = 1
layers = 2
hidden = 64
heads = 4
kv_heads = 2
mlp_hidden = 96
vocabulary = 100
sequence = 32
experts = 4
experts_per_token = 2
mlp = "swiglu"
norm = "rms_norm"
bias = "none"
positions = "rotary"
tie_word_embeddings = false
dropout = false
attention = "flash"
)";
  constexpr absl::string_view kTheirs = R"(version = 1
model_type = "mixtral"
num_hidden_layers = 2
hidden_size = 64
num_attention_heads = 4
num_key_value_heads = 2
intermediate_size = 96
vocab_size = 100
sequence = 32
num_local_experts = 4
num_experts_per_tok = 2
)";
  ASSERT_OK_AND_ASSIGN(const TransformerDescription ours, ParseTransformer(kOurs));
  ASSERT_OK_AND_ASSIGN(const TransformerDescription theirs, ParseTransformer(kTheirs));
  EXPECT_EQ(ours, theirs);
  EXPECT_THAT(ParseTransformer(absl::StrCat(kOurs, "hidden_size = 64\n")),
              testing::IsRefused(StartsWith("18:1: $.hidden_size: is \"hidden\"")));
}

// Changes to the config of Llama 3 8B.
TEST(TransformerConfig, RefusesWhatMayCostOtherwise) {
  const std::string llama = LlamaConfig(4096, 14336, 32, 32);
  const auto with = [&](absl::string_view piece, absl::string_view replacement) {
    return ParseTransformer(Edited(llama, piece, replacement));
  };
  ExpectRefusals({
      {with("'llama'", "'bloom'"),
       "model_type: must be \"gpt2\", \"llama\", \"mistral\", \"mixtral\", \"phi3\", "
       "\"qwen2\", \"qwen3\", \"gemma\", \"gemma2\", \"gemma3_text\", found "
       "\"bloom\""},
      {with("'silu'", "'relu'"), "hidden_act: must be \"silu\", found \"relu\""},
      {with("'use_cache': true", "'quantization_config': true"),
       "unknown key \"quantization_config\""},
      {with("'attention_dropout': 0.0", "'attention_dropout': 0.1"), "attention_dropout: must be"},
      {with("'use_cache': true", "'mlp_bias': true"), "mlp_bias: is true"},
      {with("'use_cache': true", "'sliding_window': 4096"), "unknown key \"sliding_window\""},
      {with("'use_cache': true", "'layer_types': ['sliding_attention']"),
       "unknown key \"layer_types\""},
      {with("'llama'", "'mistral', 'layer_types': ['sliding_attention']"),
       "layer_types: has 1 types, expected 32"},
      {with("'use_cache': true", "'is_encoder_decoder': true"), "is_encoder_decoder: is true"},
      {with("'hidden_size': 4096", "'hidden_size': 4095"), "num_attention_heads: must divide"},
      {with("'num_key_value_heads': 8", "'num_key_value_heads': 7"),
       "num_key_value_heads: must divide heads, 32, found 7"},
      {with("'hidden_size': 4096", "'hidden_size': 0"), "hidden_size: must be"},
      {with("'hidden_size': 4096", "'hiden_size': 4096"),
       "unknown key \"hiden_size\"; did you mean \"hidden_size\"?"},
      {with("'intermediate_size': 14336, ", ""), "the key \"intermediate_size\" is missing"},
      {ParseTransformer("{\"a\": 1}"), StartsWith("1:1: $: the key \"model_type\" is missing")},
  });
}

TEST(TransformerConfig, TomlNamesOneAndReplacesItsValues) {
  const std::string folder = ::testing::TempDir();
  ASSERT_OK(base::WriteFileAtomically(absl::StrCat(folder, "/llama.json"),
                                      LlamaConfig(4096, 14336, 32, 32)));
  ASSERT_OK_AND_ASSIGN(const TransformerDescription read, ParseTransformer(R"(version = 1
config = "llama.json"
sequence = 131072
num_hidden_layers = 16
recompute = "auto"
)",
                                                                           folder));
  const Transformer& t = read.transformer;
  EXPECT_EQ(t.sequence, 131072);
  EXPECT_EQ(t.layers, 16);
  EXPECT_EQ(t.mlp_hidden, 14336);
  EXPECT_EQ(read.recomputes.size(), 2u);
  ASSERT_OK(base::WriteFileAtomically(absl::StrCat(folder, "/bad.json"),
                                      "{\"model_type\": \"llama\",\n \"x\": 1}"));
  ExpectRefusals({
      {ParseTransformer("version = 1\nconfig = \"no.json\"", folder), "no.json",
       absl::StatusCode::kNotFound},
      {ParseTransformer("version = 1\nconfig = \"llama.json\"\nmodel_type = \"gpt2\"", folder),
       "3:1: $.model_type: is that"},
      {ParseTransformer("version = 1\nconfig = \"bad.json\"", folder),
       "bad.json:1:1: $: the key \"intermediate_size\""},
      {ParseTransformer("version = 1\nconfig = \"llama.json\""),
       StartsWith("2:1: $.config: is of a file")},
  });
}

}  // namespace
}  // namespace stagecoach::partition
