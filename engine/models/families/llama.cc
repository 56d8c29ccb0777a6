// LlamaForCausalLM, and what differs from it in few things: MistralForCausalLM, Phi3ForCausalLM,
// Qwen2ForCausalLM, Qwen3ForCausalLM.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/hugging_face_keys.h"
#include "base/text/json.h"
#include "engine/models/families/family.h"
#include "engine/models/families/rotation.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;

// The values that transformers assumes for a model type if config.json has not got them.
struct Defaults {
  absl::string_view model_type;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t context, vocabulary;
  std::vector<int64_t> end_of_text = {2};
  std::optional<int64_t> begin_of_text = 1;
  int64_t window = 0;     // positions that attention looks back on, itself included; 0: all
  int64_t head_size = 0;  // 0: the width, divided by the heads
  bool qkv_bias = false;
  bool qk_norm = false;
  bool may_use_window = false;  // only if "use_sliding_window" is set
  double norm_epsilon = 1e-6;
  bool has_joined_tensors = false;
};

const Defaults& DefaultsOf(absl::string_view model_type) {
  static const auto& all = *new std::vector<Defaults>{
      {.model_type = "llama", .context = 2048, .vocabulary = 32000},
      {.model_type = "mistral",
       .kv_heads = 8,
       .context = 131072,
       .vocabulary = 32000,
       .window = 4096},
      {.model_type = "phi3",
       .context = 4096,
       .vocabulary = 32064,
       .end_of_text = {32000},
       .norm_epsilon = 1e-5,
       .has_joined_tensors = true},
      {.model_type = "qwen2",
       .kv_heads = 32,
       .context = 32768,
       .vocabulary = 151936,
       .end_of_text = {},
       .begin_of_text = std::nullopt,
       .window = 4096,
       .qkv_bias = true,
       .may_use_window = true},
      {.model_type = "qwen3",
       .kv_heads = 32,
       .context = 32768,
       .vocabulary = 151936,
       .end_of_text = {},
       .begin_of_text = std::nullopt,
       .window = 4096,
       .head_size = 128,
       .qk_norm = true,
       .may_use_window = true},
  };
  return *std::find_if(all.begin(), all.end(),
                       [&](const Defaults& type) { return type.model_type == model_type; });
}

// Heads of Phi 3 may be rotated in part, as those of Phi 4 mini are.
absl::Status ReadLlamaPositions(const nlohmann::json& document, bool is_phi3, ObjectReader& reader,
                                Transformer& model) {
  constexpr char kShare[] = "partial_rotary_factor";
  PositionsOfConfig positions = {.most = model.context, .is_phi3 = is_phi3};
  Rotation rotation;
  ASSIGN_OR_RETURN(rotation.base, reader.OptionalDouble("rope_theta", rotation.base));
  if (is_phi3) {
    ASSIGN_OR_RETURN(positions.original, reader.OptionalInt64("original_max_position_embeddings",
                                                              4096, kTransformerExtents));
    ASSIGN_OR_RETURN(rotation.share, reader.OptionalDouble(kShare, 1.0, {.min = 0.0, .max = 1.0}));
  } else {
    RETURN_IF_ERROR(ExpectAbsentOr(document, reader, kShare, 1.0));
  }
  RETURN_IF_ERROR(ReadRotation(document, reader, positions, rotation));
  model.rotary_base = rotation.base;
  model.rotary_scaling = rotation.scaling;
  if (rotation.share == 1.0) return absl::OkStatus();
  if (!is_phi3) {
    return reader.Error(
        "rope_parameters",
        absl::StrCat("has a partial_rotary_factor of ", rotation.share,
                     ", which there is no Llama with here: its heads are rotated as a whole"));
  }
  ASSIGN_OR_RETURN(model.rotary_size,
                   RotatedNumbers(rotation, model.size_of_head(), reader, kShare));
  return absl::OkStatus();
}

// Reads the window of all blocks, or of those behind the first ones. One that no position of the
// context is outside of is none.
absl::Status ReadWindow(const nlohmann::json& document, ObjectReader& reader,
                        const Defaults& defaults, Transformer& model) {
  int64_t window = defaults.window;
  if (reader.Has("sliding_window")) {
    window = 0;
    if (!document["sliding_window"].is_null()) {
      ASSIGN_OR_RETURN(window, reader.RequiredInt64("sliding_window", kTransformerExtents));
    }
  }
  if (defaults.may_use_window) {
    // As in transformers: a list of all layers overrides the number of the first ones.
    ASSIGN_OR_RETURN(const bool is_used, reader.OptionalBool("use_sliding_window", false));
    ASSIGN_OR_RETURN(
        model.global_first,
        reader.OptionalInt64("max_window_layers", 28, {.min = 0, .max = kMaxTransformerExtent}));
    ASSIGN_OR_RETURN(const auto pattern, base::ReadWindowPattern(document, reader, model.blocks));
    if (!is_used) window = 0;
    if (pattern.has_value()) {
      if (pattern->global_every != 0) {
        return reader.Error("layer_types",
                            "has layers without a window behind one with it; in a model of ours "
                            "they come first");
      }
      if (pattern->has_window && window == 0) {
        return reader.Error("layer_types", "has layers with a window, and there is none");
      }
      model.global_first = pattern->has_window ? pattern->global_first : model.blocks;
    }
  }
  const bool has_window =
      window != 0 && window < model.context && model.global_first < model.blocks;
  model.window = has_window ? window : 0;
  if (!has_window) model.global_first = 0;
  return absl::OkStatus();
}

absl::StatusOr<Transformer> ReadLlama(const nlohmann::json& document, absl::string_view model_type,
                                      ObjectReader& reader) {
  const Defaults& defaults = DefaultsOf(model_type);
  Transformer model = {.family = TransformerFamily::kLlama};
  ASSIGN_OR_RETURN(model.blocks, reader.RequiredInt64("num_hidden_layers", kTransformerExtents));
  ASSIGN_OR_RETURN(model.width, reader.RequiredInt64("hidden_size", kTransformerExtents));
  ASSIGN_OR_RETURN(model.heads, reader.RequiredInt64("num_attention_heads", kTransformerExtents));
  const int64_t kv_heads = defaults.kv_heads == 0 ? model.heads : defaults.kv_heads;
  ASSIGN_OR_RETURN(model.kv_heads,
                   reader.OptionalInt64("num_key_value_heads", kv_heads, kTransformerExtents));
  ASSIGN_OR_RETURN(model.hidden, reader.RequiredInt64("intermediate_size", kTransformerExtents));
  ASSIGN_OR_RETURN(model.context, reader.OptionalInt64("max_position_embeddings", defaults.context,
                                                       kTransformerExtents));
  ASSIGN_OR_RETURN(model.vocabulary,
                   reader.OptionalInt64("vocab_size", defaults.vocabulary, kTransformerExtents));
  ASSIGN_OR_RETURN(model.norm_epsilon,
                   reader.OptionalDouble("rms_norm_eps", defaults.norm_epsilon));
  ASSIGN_OR_RETURN(model.is_tied, reader.OptionalBool("tie_word_embeddings", false));
  model.qkv_bias = defaults.qkv_bias;
  model.qk_norm = defaults.qk_norm;
  model.has_joined_tensors = defaults.has_joined_tensors;
  model.head_size = defaults.head_size;
  if (reader.Has("head_dim") && !document["head_dim"].is_null()) {
    ASSIGN_OR_RETURN(model.head_size, reader.RequiredInt64("head_dim", kTransformerExtents));
  }
  if (model.head_size * model.heads == model.width) model.head_size = 0;
  RETURN_IF_ERROR(ReadLlamaPositions(document, model_type == "phi3", reader, model));
  if (model_type != "llama") {
    RETURN_IF_ERROR(ReadWindow(document, reader, defaults, model));
  }
  model.end_of_text = defaults.end_of_text;
  model.begin_of_text = defaults.begin_of_text;
  RETURN_IF_ERROR(ExpectText(document, reader, "hidden_act", {"silu"}));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "attention_bias", false));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "mlp_bias", false));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "rope_interleaved", false));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "use_mrope", false));
  if (model_type == "phi3") {
    RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "lm_head_bias", false));
    // transformers does not read these.
    for (const char* const key : {"full_attn_mod", "interpolate_factor"}) reader.Has(key);
    // The first names a program of the model's own, which does what that of transformers does.
    for (const char* const key : {"auto_map", "resid_pdrop", "embd_pdrop"}) reader.Has(key);
  }
  // These determine how the products are divided, not what they are.
  RETURN_IF_ERROR(base::CheckOtherConfigKeys(
      document, reader, {"attention_dropout", "pretraining_tp", "max_sequence_length"}));
  return model;
}

// A Mistral without a window is a Llama, and written as one.
nlohmann::ordered_json LlamaConfig(const Transformer& model) {
  const char* const name = model.has_joined_tensors ? "Phi3"
                           : model.qk_norm          ? "Qwen3"
                           : model.qkv_bias         ? "Qwen2"
                           : model.window != 0      ? "Mistral"
                                                    : "Llama";
  nlohmann::ordered_json config = {{"architectures", {absl::StrCat(name, "ForCausalLM")}},
                                   {"model_type", absl::AsciiStrToLower(name)},
                                   {"num_hidden_layers", model.blocks},
                                   {"hidden_size", model.width},
                                   {"num_attention_heads", model.heads},
                                   {"num_key_value_heads", model.kv_heads},
                                   {"intermediate_size", model.hidden},
                                   {"max_position_embeddings", model.context},
                                   {"vocab_size", model.vocabulary},
                                   {"rms_norm_eps", model.norm_epsilon},
                                   {"rope_theta", model.rotary_base},
                                   {"hidden_act", "silu"}};
  // Phi 3's is 32000 by default, whatever the vocabulary.
  if (model.has_joined_tensors) config["pad_token_id"] = nullptr;
  if (model.head_size != 0 || model.qk_norm) config["head_dim"] = model.size_of_head();
  if (model.rotary_size != 0) {
    config["partial_rotary_factor"] = RotaryShare(model.size_of_head(), model.rotary_size);
  }
  WriteScaling(model.rotary_scaling, config);
  if (model.has_joined_tensors && model.rotary_scaling.kind == RotaryKind::kLongRope) {
    config["original_max_position_embeddings"] = model.rotary_scaling.original_positions;
  }
  if (model.window == 0) return config;
  config["sliding_window"] = model.window;
  if (!model.qk_norm && !model.qkv_bias) return config;
  config["use_sliding_window"] = true;
  config["max_window_layers"] = model.global_first;
  return config;
}

// Returns the order of the outputs of "qkv_proj", whose queries and keys are rotated in part; none
// if it is that of ours.
std::vector<int64_t> OrderOfJoinedHeads(const Transformer& model) {
  std::vector<int64_t> order;
  if (model.rotary_size == 0) return order;
  const int64_t D = model.size_of_head();
  const int64_t rotated = (model.heads + model.kv_heads) * D;
  for (int64_t i = 0; i < rotated + model.kv_heads * D; ++i) {
    order.push_back(i < rotated ? i - i % D + PlaceInHead(D, model.rotary_size, i % D) : i);
  }
  return order;
}

void AddLlamaBlock(const Transformer& model, int64_t block, ParameterNames& names) {
  const std::string prefix = absl::StrCat("layers.", block, ".");
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t of_queries = model.heads * model.size_of_head();
  const int64_t of_kv = model.kv_heads * model.size_of_head();
  names.NextLayer();
  names.AddNorm("0.", prefix + "input_layernorm", false);
  names.AddLinears(1, model.width,
                   model.has_joined_tensors
                       ? Linears{{attention + "qkv_proj", of_queries + 2 * of_kv}}
                       : Linears{{attention + "q_proj", of_queries},
                                 {attention + "k_proj", of_kv},
                                 {attention + "v_proj", of_kv}},
                   model.qkv_bias, OrderOfJoinedHeads(model));
  if (model.qk_norm) {
    names.AddGain("2.q_gamma", attention + "q_norm.weight", model.size_of_head());
    names.AddGain("2.k_gamma", attention + "k_norm.weight", model.size_of_head());
  }
  names.AddLinears(model.qk_norm ? 4 : 3, of_queries, {{attention + "o_proj", model.width}});
  names.NextLayer();
  names.AddNorm("0.", prefix + "post_attention_layernorm", false);
  names.AddLinears(1, model.width,
                   model.has_joined_tensors ? Linears{{mlp + "gate_up_proj", 2 * model.hidden}}
                                            : Linears{{mlp + "gate_proj", model.hidden},
                                                      {mlp + "up_proj", model.hidden}});
  names.AddLinears(3, model.hidden, {{mlp + "down_proj", model.width}});
}

std::vector<HuggingFaceParameter> LlamaParameters(const Transformer& model) {
  ParameterNames names(model.width);
  names.AddPlain("tokens", "embed_tokens.weight", {model.vocabulary, model.width});
  for (int64_t block = 0; block < model.blocks; ++block) AddLlamaBlock(model, block, names);
  names.NextLayer();
  names.AddNorm("", "norm", false);
  names.AddHead(model);
  return std::move(names).Take();
}

}  // namespace

const TransformerFiles& LlamaFiles() {
  static const auto& files = *new TransformerFiles{
      .family = TransformerFamily::kLlama,
      .model_types = {"llama", "mistral", "phi3", "qwen2", "qwen3"},
      .prefix = "model.",
      .token_table = "embed_tokens.weight",
      .dropout = {{"attention_dropout", 0.0}, {"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}},
      .read = ReadLlama,
      .config = LlamaConfig,
      .parameters = LlamaParameters};
  return files;
}

}  // namespace stagecoach::engine
