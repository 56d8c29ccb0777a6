#include "partition/io/transformer_families.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/hugging_face_keys.h"

namespace stagecoach::partition {
namespace {

using base::ObjectReader;
using nlohmann::json;

// A family of Hugging Face's, with the defaults of its configuration.
struct Family {
  const char* type;
  bool is_gpt2 = false;  // else like Llama
  Bias bias = Bias::kNone;
  int64_t kv_heads = 0, experts = 0, experts_per_token = 1, head_size = 0;
  bool qk_norm = false;
  bool may_have_bias = false;  // which is then a key
  bool is_gemma = false, post_norms = false;
  bool has_window = false;  // in some configurations: a key
  int64_t window = 0, global_every = 0;
  bool may_use_window = false;  // only if "use_sliding_window" is set
  bool has_period = false;      // "sliding_window_pattern", for global_every
};
constexpr Family kFamilies[] = {
    {.type = "gpt2", .is_gpt2 = true, .bias = Bias::kAll},
    {.type = "llama", .may_have_bias = true},
    {.type = "mistral", .kv_heads = 8, .has_window = true, .window = 4096},
    {.type = "mixtral", .kv_heads = 8, .experts = 8, .experts_per_token = 2, .has_window = true},
    {.type = "phi3", .may_have_bias = true, .has_window = true},
    {.type = "qwen2",
     .bias = Bias::kQkv,
     .kv_heads = 32,
     .has_window = true,
     .window = 4096,
     .may_use_window = true},
    {.type = "qwen3",
     .kv_heads = 32,
     .head_size = 128,
     .qk_norm = true,
     .may_have_bias = true,
     .has_window = true,
     .window = 4096,
     .may_use_window = true},
    {.type = "gemma", .kv_heads = 16, .head_size = 256, .is_gemma = true},
    {.type = "gemma2",
     .kv_heads = 4,
     .head_size = 256,
     .is_gemma = true,
     .post_norms = true,
     .has_window = true,
     .window = 4096,
     .global_every = 2},
    {.type = "gemma3_text",
     .kv_heads = 4,
     .head_size = 256,
     .qk_norm = true,
     .is_gemma = true,
     .post_norms = true,
     .has_window = true,
     .window = 4096,
     .global_every = 6,
     .has_period = true}};
// Hugging Face's keys that do not affect costs.
constexpr const char* kFreeKeysOfGpt2[] = {"n_ctx",
                                           "layer_norm_epsilon",
                                           "reorder_and_upcast_attn",
                                           "scale_attn_weights",
                                           "scale_attn_by_inverse_layer_idx",
                                           "n_special",
                                           "predict_special_tokens",
                                           "summary_type",
                                           "summary_use_proj",
                                           "summary_activation",
                                           "summary_proj_to_labels",
                                           "summary_first_dropout"};
constexpr const char* kFreeKeysOfLlama[] = {"rms_norm_eps",
                                            "rope_theta",
                                            "rope_scaling",
                                            "rope_parameters",
                                            "rope_interleaved",
                                            "pretraining_tp",
                                            "max_sequence_length",
                                            "router_aux_loss_coef",
                                            "router_jitter_noise",
                                            "output_router_logits",
                                            "use_mrope",
                                            "original_max_position_embeddings",
                                            "partial_rotary_factor",
                                            "full_attn_mod",
                                            "interpolate_factor",
                                            "lm_head_bias",
                                            "auto_map"};
constexpr const char* kFreeKeysOfGemma[] = {"rms_norm_eps",
                                            "rope_theta",
                                            "rope_local_base_freq",
                                            "rope_scaling",
                                            "rope_parameters",
                                            "query_pre_attn_scalar",
                                            "attn_logit_softcapping",
                                            "final_logit_softcapping",
                                            "_sliding_window_pattern",
                                            "cache_implementation"};

// ---- Families ----

absl::Status ExpectWord(const json& document, ObjectReader& reader, const char* key,
                        absl::Span<const char* const> words) {
  if (!HasValue(document, reader, key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string word, reader.RequiredString(key));
  return IndexOf(word, words, key, "", reader).status();
}

absl::Status ReadGpt2(const json& document, ObjectReader& reader, Transformer& t) {
  RETURN_IF_ERROR(ExpectWord(document, reader, "activation_function",
                             {"gelu_new", "gelu_pytorch_tanh", "gelu"}));
  t.dropout = false;
  for (const char* const key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    ASSIGN_OR_RETURN(const double share, reader.OptionalDouble(key, 0.1));  // as in transformers
    t.dropout = t.dropout || share > 0;
  }
  return absl::OkStatus();
}

// Reads which layers have a window, and which.
absl::Status ReadWindow(const json& document, ObjectReader& reader, const Family& family,
                        Transformer& t) {
  if (!family.has_window) return absl::OkStatus();
  t.window = family.window;
  t.global_every = family.global_every;
  if (reader.Has("sliding_window")) {
    t.window = 0;
    if (!document["sliding_window"].is_null()) {
      ASSIGN_OR_RETURN(t.window, reader.RequiredInt64("sliding_window", {.min = 1}));
    }
  }
  if (family.may_use_window) {
    ASSIGN_OR_RETURN(const bool is_used, reader.OptionalBool("use_sliding_window", false));
    ASSIGN_OR_RETURN(t.global_first, reader.OptionalInt64("max_window_layers", 28, {.min = 0}));
    if (!is_used) t.window = 0;
  }
  if (family.has_period) {
    ASSIGN_OR_RETURN(t.global_every,
                     reader.OptionalInt64("sliding_window_pattern", t.global_every, {.min = 0}));
  }
  const char* const layers = HasValue(document, reader, "layers") ? "layers" : "num_hidden_layers";
  if (!document.contains(layers)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t count, reader.RequiredInt64(layers));
  ASSIGN_OR_RETURN(const auto pattern, base::ReadWindowPattern(document, reader, count));
  if (pattern.has_value()) {
    if (pattern->has_window && t.window == 0) {
      return reader.Error("layer_types", "has layers with a window, and there is none");
    }
    t.global_first = pattern->global_first;
    t.global_every = pattern->global_every;
    if (!pattern->has_window) t.window = 0;
  }
  if (t.global_first >= count || t.global_every == 1) t.window = 0;
  if (t.window == 0) t.global_first = t.global_every = 0;
  return absl::OkStatus();
}

// Sets what the models with RMS norms, gates and rotary positions have in common.
absl::Status ReadGated(const json& document, ObjectReader& reader, Transformer& t) {
  t.mlp = Mlp::kSwiGlu;
  t.norm = Norm::kRmsNorm;
  t.positions = Positions::kRotary;
  t.tie_word_embeddings = false;
  t.dropout = false;
  for (const char* const key : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) {
    if (!HasValue(document, reader, key)) continue;
    RETURN_IF_ERROR(reader.RequiredDouble(key, {.min = 0, .max = 0}).status());
  }
  return absl::OkStatus();
}

absl::Status ReadGemma(const json& document, ObjectReader& reader, const Family& family,
                       Transformer& t) {
  RETURN_IF_ERROR(ReadGated(document, reader, t));
  t.tie_word_embeddings = true;
  t.post_norms = family.post_norms;
  RETURN_IF_ERROR(
      ExpectWord(document, reader, "hidden_act", {"gelu_pytorch_tanh", "gelu_new", "gelu"}));
  RETURN_IF_ERROR(
      ExpectWord(document, reader, "hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}));
  for (const char* const key : {"attention_bias", "use_bidirectional_attention"}) {
    ASSIGN_OR_RETURN(const bool is_set, reader.OptionalBool(key, false));
    if (is_set) return reader.Error(key, "is true, of which no costs are known here");
  }
  return ReadWindow(document, reader, family, t);
}

absl::Status ReadLlama(const json& document, ObjectReader& reader, const Family& family,
                       Transformer& t) {
  RETURN_IF_ERROR(ReadGated(document, reader, t));
  RETURN_IF_ERROR(ExpectWord(document, reader, "hidden_act", {"silu"}));
  if (family.may_have_bias) {
    ASSIGN_OR_RETURN(const bool of_attention, reader.OptionalBool("attention_bias", false));
    ASSIGN_OR_RETURN(const bool of_mlp, reader.OptionalBool("mlp_bias", false));
    if (of_mlp && !of_attention) {
      return reader.Error("mlp_bias", "is true, which attention_bias is not; expected both");
    }
    t.bias = of_mlp ? Bias::kAll : of_attention ? Bias::kAttention : Bias::kNone;
  }
  return ReadWindow(document, reader, family, t);
}

}  // namespace

bool HasValue(const json& document, ObjectReader& reader, const char* key) {
  return reader.Has(key) && !document[key].is_null();
}

std::string Quoted(absl::Span<const char* const> words) {
  return absl::StrCat("\"", absl::StrJoin(words, "\", \""), "\"");
}

absl::StatusOr<size_t> IndexOf(const std::string& word, absl::Span<const char* const> words,
                               const char* key, const std::string& more,
                               const ObjectReader& reader) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  return reader.Error(key, absl::StrCat("must be ", Quoted(words), more, ", found \"",
                                        absl::CHexEscape(word), "\""));
}

absl::Status ReadFamily(const json& document, ObjectReader& reader, ReadTransformerKeys& read) {
  ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("model_type"));
  const auto* const family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                          [&](const Family& own) { return own.type == type; });
  if (family == std::end(kFamilies)) {
    std::vector<const char*> types;
    for (const Family& own : kFamilies) types.push_back(own.type);
    return IndexOf(type, types, "model_type", "", reader).status();
  }
  Transformer& t = read.description.transformer;
  t.bias = family->bias;
  t.kv_heads = family->kv_heads;
  t.head_size = family->head_size;
  t.qk_norm = family->qk_norm;
  t.experts = family->experts;
  t.experts_per_token = family->experts_per_token;
  t.attention = Attention::kFlash;
  read.description.attentions = {Attention::kFlash};
  if (!family->is_gpt2 && !HasValue(document, reader, "mlp_hidden") &&
      !HasValue(document, reader, "intermediate_size")) {
    RETURN_IF_ERROR(reader.RequiredInt64("intermediate_size").status());
  }
  if (family->is_gpt2) return ReadGpt2(document, reader, t);
  return family->is_gemma ? ReadGemma(document, reader, *family, t)
                          : ReadLlama(document, reader, *family, t);
}

absl::Status FinishFamily(const json& document, ObjectReader& reader) {
  const std::string type = document["model_type"];
  const absl::Span<const char* const> free = type == "gpt2" ? absl::MakeConstSpan(kFreeKeysOfGpt2)
                                             : absl::StartsWith(type, "gemma")
                                                 ? absl::MakeConstSpan(kFreeKeysOfGemma)
                                                 : absl::MakeConstSpan(kFreeKeysOfLlama);
  return base::CheckOtherConfigKeys(document, reader, free);
}

}  // namespace stagecoach::partition
