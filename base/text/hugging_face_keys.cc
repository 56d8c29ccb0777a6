#include "base/text/hugging_face_keys.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::base {
namespace {

constexpr const char* kOfEveryFamily[] = {
    // The file's origin, and the programs that wrote it.
    "_name_or_path", "name_or_path", "architectures", "model_type", "transformers_version",
    "torch_dtype", "dtype", "tokenizer_class", "prefix", "finetuning_task", "task_specific_params",
    "transformers.js_config", "unsloth_fixed", "unsloth_version", "is_llama_config",
    // How a model is run; results depend on these only by rounding.
    "use_cache", "torchscript", "gradient_checkpointing", "attn_implementation",
    "_attn_implementation", "_attn_implementation_autoset", "_flash_attn_2_enabled",
    "chunk_size_feed_forward", "use_bfloat16", "tf_legacy_loss", "low_cpu_mem_usage",
    // Additional outputs.
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "return_dict",
    "return_dict_in_generate", "use_return_dict",
    // Initialization, for models without weights yet.
    "initializer_range",
    // Heads of tasks other than the one that is read.
    "id2label", "label2id", "num_labels", "_num_labels", "problem_type",
    // Special tokens, and how text is generated.
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "max_length", "min_length", "max_new_tokens",
    "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "num_return_sequences", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty",
    "remove_invalid_values"};

struct Expected {
  const char* key;
  const char* value;  // as JSON
};
// Keys that change what is computed unless they have this value.
constexpr Expected kNothingElse[] = {
    {"is_decoder", "false"},          {"is_encoder_decoder", "false"},
    {"add_cross_attention", "false"}, {"tie_encoder_decoder", "false"},
    {"pruned_heads", "{}"},           {"cross_attention_hidden_size", "null"}};

}  // namespace

absl::Status RefuseUnknownKeys(const nlohmann::json& document, ObjectReader& reader) {
  for (const auto& [key, value] : document.items()) {
    if (value.is_null()) reader.Has(key);
  }
  const absl::Status unknown = reader.Finish();
  if (unknown.ok()) return unknown;
  return WithMessage(unknown,
                     absl::StrCat(unknown.message(), "; it may change what the model computes"));
}

absl::Status CheckOtherConfigKeys(const nlohmann::json& document, ObjectReader& reader,
                                  absl::Span<const char* const> others) {
  for (const char* const key : kOfEveryFamily) reader.Has(key);
  for (const char* const key : others) reader.Has(key);
  for (const auto& [key, value] : kNothingElse) {
    if (!reader.Has(key) || document[key].is_null()) continue;
    if (document[key] == nlohmann::json::parse(value)) continue;
    return reader.Error(key, absl::StrCat("is ", document[key].dump(),
                                          ", which there is no layer for here; expected ", value));
  }
  return RefuseUnknownKeys(document, reader);
}

absl::StatusOr<std::optional<WindowPattern>> ReadWindowPattern(const nlohmann::json& document,
                                                               ObjectReader& reader,
                                                               int64_t layers) {
  constexpr char kKey[] = "layer_types", kFull[] = "full_attention",
                 kSliding[] = "sliding_attention";
  if (!reader.Has(kKey) || document[kKey].is_null()) return std::nullopt;
  ASSIGN_OR_RETURN(const ArrayReader types, reader.RequiredArray(kKey));
  if (static_cast<int64_t>(types.size()) != layers) {
    return reader.Error(kKey, absl::StrCat("has ", types.size(), " types, expected ", layers,
                                           ", one for each layer"));
  }
  WindowPattern pattern;
  for (int64_t layer = 0; layer < layers; ++layer) {
    ASSIGN_OR_RETURN(const std::string type, types.String(static_cast<size_t>(layer)));
    const bool is_full = type == kFull;
    if (!is_full && type != kSliding) {
      return types.Error(
          static_cast<size_t>(layer),
          absl::StrCat("is \"", type, "\", expected \"", kFull, "\" or \"", kSliding, "\""));
    }
    if (!pattern.has_window && is_full) {
      ++pattern.global_first;
      continue;
    }
    pattern.has_window = true;
    const int64_t behind = layer + 1 - pattern.global_first;
    if (is_full && pattern.global_every == 0) pattern.global_every = behind;
    const bool expects_full = pattern.global_every != 0 && behind % pattern.global_every == 0;
    if (is_full == expects_full) continue;
    return types.Error(
        static_cast<size_t>(layer),
        absl::StrCat("is \"", type, "\", expected \"", expects_full ? kFull : kSliding,
                     "\": a model of ours has the same number of layers with a window before each "
                     "one without"));
  }
  if (!pattern.has_window) pattern.global_first = 0;
  return pattern;
}

}  // namespace stagecoach::base
