// GemmaForCausalLM, Gemma2ForCausalLM, and Gemma3ForCausalLM, which is the part of Gemma 3 that
// takes text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/hugging_face_keys.h"
#include "base/text/json.h"
#include "engine/models/families/family.h"
#include "engine/models/families/rotation.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;

constexpr char kFullAttention[] = "full_attention";
constexpr char kSlidingAttention[] = "sliding_attention";

// The values that transformers assumes for a model type if config.json has not got them.
struct GemmaDefaults {
  int64_t kv_heads, context, vocabulary;
  int64_t global_every = 0;
  double rotary_base = 10000.0;
  double score_cap = 0.0, logit_cap = 0.0;
};
GemmaDefaults GemmaDefaultsOf(absl::string_view model_type) {
  if (model_type == "gemma") return {.kv_heads = 16, .context = 8192, .vocabulary = 256000};
  if (model_type == "gemma2") {
    return {.kv_heads = 4,
            .context = 8192,
            .vocabulary = 256000,
            .global_every = 2,
            .score_cap = 50.0,
            .logit_cap = 30.0};
  }
  return {.kv_heads = 4,
          .context = 131072,
          .vocabulary = 262208,
          .global_every = 6,
          .rotary_base = 1000000.0};
}

// Reads which blocks have a window: all except every global_every-th one.
absl::Status ReadLayerTypes(const nlohmann::json& document, ObjectReader& reader,
                            int64_t usual_period, Transformer& model) {
  model.global_every = usual_period;
  if (model.qk_norm) {
    reader.Has("_sliding_window_pattern");  // transformers writes it, and does not read it
    ASSIGN_OR_RETURN(model.global_every, reader.OptionalInt64("sliding_window_pattern",
                                                              usual_period, kTransformerExtents));
  }
  ASSIGN_OR_RETURN(const auto pattern, base::ReadWindowPattern(document, reader, model.blocks));
  if (pattern.has_value()) {
    if (pattern->global_first != 0) {
      return reader.Error("layer_types",
                          "has layers with a window behind one without, with which it begins; in a "
                          "Gemma of ours the same number of layers with a window precedes each one "
                          "without");
    }
    model.global_every = pattern->has_window ? pattern->global_every : 1;
  }
  if (model.global_every > model.blocks) model.global_every = 0;
  if (model.global_every != 1) return absl::OkStatus();
  // No layer has a window.
  model.window = model.global_every = 0;
  return absl::OkStatus();
}

absl::Status ReadGemmaWindow(const nlohmann::json& document, ObjectReader& reader,
                             int64_t usual_period, Transformer& model) {
  constexpr char kKey[] = "sliding_window";
  const bool is_null = reader.Has(kKey) && document[kKey].is_null();
  model.window = 1;
  if (!is_null) {
    ASSIGN_OR_RETURN(model.window, reader.OptionalInt64(kKey, 4096, kTransformerExtents));
  }
  RETURN_IF_ERROR(ReadLayerTypes(document, reader, usual_period, model));
  if (!is_null || model.window == 0) return absl::OkStatus();
  return reader.Error(kKey, "is null, but there are layers with a window");
}

// Reads the rotations of Gemma 3's layers with a window, and of those without.
absl::Status ReadBothRotations(const nlohmann::json& document, ObjectReader& reader,
                               const PositionsOfConfig& positions, Rotation& global,
                               Rotation& local) {
  ASSIGN_OR_RETURN(local.base, reader.OptionalDouble("rope_local_base_freq", local.base));
  if (reader.Has("rope_scaling") && !document["rope_scaling"].is_null()) {
    ASSIGN_OR_RETURN(ObjectReader own, reader.RequiredObject("rope_scaling"));
    RETURN_IF_ERROR(
        ReadRotationObject(std::move(own), document["rope_scaling"], positions, global));
  }
  constexpr char kKey[] = "rope_parameters";
  if (!reader.Has(kKey) || document[kKey].is_null()) return absl::OkStatus();
  ASSIGN_OR_RETURN(ObjectReader both, reader.RequiredObject(kKey));
  for (const auto& [key, rotation] :
       {std::pair(kFullAttention, &global), std::pair(kSlidingAttention, &local)}) {
    if (!both.Has(key) || document[kKey][key].is_null()) continue;
    ASSIGN_OR_RETURN(ObjectReader own, both.RequiredObject(key));
    RETURN_IF_ERROR(ReadRotationObject(std::move(own), document[kKey][key], positions, *rotation));
  }
  if (!local.scaling.is_none()) {
    return both.Error(kSlidingAttention,
                      "scales positions, which only layers without a window can here");
  }
  return base::RefuseUnknownKeys(document[kKey], both);
}

absl::Status ReadGemmaPositions(const nlohmann::json& document, ObjectReader& reader,
                                double usual_base, Transformer& model) {
  Rotation global = {.base = usual_base}, local;
  ASSIGN_OR_RETURN(global.base, reader.OptionalDouble("rope_theta", usual_base));
  const PositionsOfConfig positions = {.most = model.context};
  if (!model.qk_norm) {
    RETURN_IF_ERROR(ReadRotation(document, reader, positions, global));
  } else {
    RETURN_IF_ERROR(ReadBothRotations(document, reader, positions, global, local));
    if (model.window != 0 && model.global_every == 0) {
      global = local;
    } else if (model.window != 0 && global != local) {
      model.local_rotary_base = local.base;
    }
  }
  if (global.share != 1.0 || local.share != 1.0) {
    return reader.Error("rope_parameters",
                        "has a partial_rotary_factor: the heads of Gemma are rotated as a whole");
  }
  model.rotary_base = global.base;
  model.rotary_scaling = global.scaling;
  return absl::OkStatus();
}

// Reads a cap: no number is none.
absl::StatusOr<double> ReadCap(const nlohmann::json& document, ObjectReader& reader,
                               const char* key, double usual) {
  if (reader.Has(key) && document[key].is_null()) return 0.0;
  return reader.OptionalDouble(key, usual, {.min = 1e-3, .max = 1e6});
}

// Reads what Gemma 2 and 3 have, and Gemma 1 has not.
absl::Status ReadLaterKeys(const nlohmann::json& document, ObjectReader& reader,
                           const GemmaDefaults& defaults, Transformer& model) {
  model.has_post_norms = true;
  ASSIGN_OR_RETURN(model.query_scalar,
                   reader.OptionalInt64("query_pre_attn_scalar", 256, kTransformerExtents));
  if (model.query_scalar == model.size_of_head()) model.query_scalar = 0;
  RETURN_IF_ERROR(ReadGemmaWindow(document, reader, defaults.global_every, model));
  ASSIGN_OR_RETURN(model.logit_cap,
                   ReadCap(document, reader, "final_logit_softcapping", defaults.logit_cap));
  constexpr char kScoreCap[] = "attn_logit_softcapping";
  // transformers has it in the configuration of Gemma 3, and not in its attention.
  if (model.qk_norm) return ExpectAbsentOr(document, reader, kScoreCap, nullptr);
  ASSIGN_OR_RETURN(model.score_cap, ReadCap(document, reader, kScoreCap, defaults.score_cap));
  return absl::OkStatus();
}

absl::StatusOr<Transformer> ReadGemma(const nlohmann::json& document, absl::string_view model_type,
                                      ObjectReader& reader) {
  const GemmaDefaults defaults = GemmaDefaultsOf(model_type);
  Transformer model = {.family = TransformerFamily::kGemma};
  ASSIGN_OR_RETURN(model.blocks, reader.RequiredInt64("num_hidden_layers", kTransformerExtents));
  ASSIGN_OR_RETURN(model.width, reader.RequiredInt64("hidden_size", kTransformerExtents));
  ASSIGN_OR_RETURN(model.heads, reader.RequiredInt64("num_attention_heads", kTransformerExtents));
  ASSIGN_OR_RETURN(model.kv_heads, reader.OptionalInt64("num_key_value_heads", defaults.kv_heads,
                                                        kTransformerExtents));
  ASSIGN_OR_RETURN(model.head_size, reader.OptionalInt64("head_dim", 256, kTransformerExtents));
  if (model.head_size * model.heads == model.width) model.head_size = 0;
  ASSIGN_OR_RETURN(model.hidden, reader.RequiredInt64("intermediate_size", kTransformerExtents));
  ASSIGN_OR_RETURN(model.context, reader.OptionalInt64("max_position_embeddings", defaults.context,
                                                       kTransformerExtents));
  ASSIGN_OR_RETURN(model.vocabulary,
                   reader.OptionalInt64("vocab_size", defaults.vocabulary, kTransformerExtents));
  ASSIGN_OR_RETURN(model.norm_epsilon, reader.OptionalDouble("rms_norm_eps", 1e-6));
  ASSIGN_OR_RETURN(model.is_tied, reader.OptionalBool("tie_word_embeddings", true));
  model.qk_norm = model_type == "gemma3_text";
  if (model_type != "gemma") {
    RETURN_IF_ERROR(ReadLaterKeys(document, reader, defaults, model));
  }
  RETURN_IF_ERROR(ReadGemmaPositions(document, reader, defaults.rotary_base, model));
  model.end_of_text = {1};  // as in transformers
  model.begin_of_text = 2;
  // The weights of Gemma 1 say "gelu", and are of its tanh form, which transformers then takes.
  RETURN_IF_ERROR(
      ExpectText(document, reader, "hidden_act", {"gelu_pytorch_tanh", "gelu_new", "gelu"}));
  RETURN_IF_ERROR(
      ExpectText(document, reader, "hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "attention_bias", false));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "use_bidirectional_attention", false));
  RETURN_IF_ERROR(
      base::CheckOtherConfigKeys(document, reader, {"attention_dropout", "cache_implementation"}));
  return model;
}

nlohmann::ordered_json GemmaConfig(const Transformer& model) {
  const bool is_third = model.qk_norm, is_later = model.has_post_norms;
  const char* const name = is_third ? "Gemma3" : is_later ? "Gemma2" : "Gemma";
  const char* const type = is_third ? "gemma3_text" : is_later ? "gemma2" : "gemma";
  nlohmann::ordered_json config = {
      {"architectures", {absl::StrCat(name, "ForCausalLM")}},
      {"model_type", type},
      {"num_hidden_layers", model.blocks},
      {"hidden_size", model.width},
      {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.kv_heads},
      {"head_dim", model.size_of_head()},
      {"intermediate_size", model.hidden},
      {"max_position_embeddings", model.context},
      {"vocab_size", model.vocabulary},
      {"rms_norm_eps", model.norm_epsilon},
      {"rope_theta", model.rotary_base},
      {is_later ? "hidden_activation" : "hidden_act", "gelu_pytorch_tanh"}};
  WriteScaling(model.rotary_scaling, config);
  if (!is_later) return config;
  const auto cap = [](double value) {
    return value == 0.0 ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  config["query_pre_attn_scalar"] =
      model.query_scalar == 0 ? model.size_of_head() : model.query_scalar;
  config["final_logit_softcapping"] = cap(model.logit_cap);
  config["attn_logit_softcapping"] = cap(model.score_cap);
  config["sliding_window"] = nullptr;
  if (model.window != 0) config["sliding_window"] = model.window;
  std::vector<std::string> types;
  for (int64_t block = 1; block <= model.blocks; ++block) {
    types.emplace_back(model.has_window(block - 1) ? kSlidingAttention : kFullAttention);
  }
  config["layer_types"] = types;
  if (is_third) {
    config["rope_local_base_freq"] =
        model.local_rotary_base == 0.0 ? model.rotary_base : model.local_rotary_base;
  }
  return config;
}

void AddGemmaBlock(const Transformer& model, int64_t block, ParameterNames& names) {
  const std::string prefix = absl::StrCat("layers.", block, ".");
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t of_queries = model.heads * model.size_of_head();
  const int64_t of_kv = model.kv_heads * model.size_of_head();
  names.NextLayer();
  names.AddNorm("0.", prefix + "input_layernorm", false);
  names.AddLinears(1, model.width,
                   Linears{{attention + "q_proj", of_queries},
                           {attention + "k_proj", of_kv},
                           {attention + "v_proj", of_kv}});
  if (model.qk_norm) {
    names.AddGain("2.q_gamma", attention + "q_norm.weight", model.size_of_head());
    names.AddGain("2.k_gamma", attention + "k_norm.weight", model.size_of_head());
  }
  names.AddLinears(model.qk_norm ? 4 : 3, of_queries, {{attention + "o_proj", model.width}});
  // In Gemma 1 it is the norm before the MLP that has this name, as in Llama.
  const std::string after_attention = prefix + "post_attention_layernorm";
  if (model.has_post_norms) names.AddNorm(model.qk_norm ? "5." : "4.", after_attention, false);
  names.NextLayer();
  names.AddNorm("0.", model.has_post_norms ? prefix + "pre_feedforward_layernorm" : after_attention,
                false);
  names.AddLinears(1, model.width,
                   Linears{{mlp + "gate_proj", model.hidden}, {mlp + "up_proj", model.hidden}});
  names.AddLinears(3, model.hidden, {{mlp + "down_proj", model.width}});
  if (model.has_post_norms) names.AddNorm("4.", prefix + "post_feedforward_layernorm", false);
}

std::vector<HuggingFaceParameter> GemmaParameters(const Transformer& model) {
  // Theirs multiply by 1 and the weight, ours by the gain.
  ParameterNames names(model.width, /*gain_offset=*/1.0F);
  names.AddPlain("tokens", "embed_tokens.weight", {model.vocabulary, model.width});
  for (int64_t block = 0; block < model.blocks; ++block) AddGemmaBlock(model, block, names);
  names.NextLayer();
  names.AddNorm("", "norm", false);
  names.AddHead(model);
  return std::move(names).Take();
}

}  // namespace

const TransformerFiles& GemmaFiles() {
  static const auto& files =
      *new TransformerFiles{.family = TransformerFamily::kGemma,
                            .model_types = {"gemma", "gemma2", "gemma3_text"},
                            .prefix = "model.",
                            .token_table = "embed_tokens.weight",
                            .dropout = {{"attention_dropout", 0.0}},
                            .read = ReadGemma,
                            .config = GemmaConfig,
                            .parameters = GemmaParameters};
  return files;
}

}  // namespace stagecoach::engine
