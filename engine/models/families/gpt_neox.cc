// GPTNeoXForCausalLM, of which the Pythias are.
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

absl::Status ReadRotaryPositions(const nlohmann::json& document, base::ObjectReader& reader,
                                 Transformer& model) {
  Rotation rotation = {.share = 0.25};
  ASSIGN_OR_RETURN(rotation.base, reader.OptionalDouble("rotary_emb_base", rotation.base));
  ASSIGN_OR_RETURN(rotation.share,
                   reader.OptionalDouble("rotary_pct", rotation.share, {.min = 0.0, .max = 1.0}));
  RETURN_IF_ERROR(ReadRotation(document, reader, {.most = model.context}, rotation));
  model.rotary_base = rotation.base;
  model.rotary_scaling = rotation.scaling;
  ASSIGN_OR_RETURN(model.rotary_size,
                   RotatedNumbers(rotation, model.size_of_head(), reader, "rotary_pct"));
  return absl::OkStatus();
}

absl::StatusOr<Transformer> ReadGptNeoX(const nlohmann::json& document, absl::string_view /*type*/,
                                        base::ObjectReader& reader) {
  Transformer model = {.family = TransformerFamily::kGptNeoX};
  ASSIGN_OR_RETURN(model.blocks,
                   reader.OptionalInt64("num_hidden_layers", 44, kTransformerExtents));
  ASSIGN_OR_RETURN(model.width, reader.OptionalInt64("hidden_size", 6144, kTransformerExtents));
  ASSIGN_OR_RETURN(model.heads,
                   reader.OptionalInt64("num_attention_heads", 64, kTransformerExtents));
  model.kv_heads = model.heads;
  ASSIGN_OR_RETURN(model.hidden,
                   reader.OptionalInt64("intermediate_size", 24576, kTransformerExtents));
  ASSIGN_OR_RETURN(model.context,
                   reader.OptionalInt64("max_position_embeddings", 2048, kTransformerExtents));
  ASSIGN_OR_RETURN(model.vocabulary,
                   reader.OptionalInt64("vocab_size", 50432, kTransformerExtents));
  ASSIGN_OR_RETURN(model.norm_epsilon, reader.OptionalDouble("layer_norm_eps", 1e-5));
  ASSIGN_OR_RETURN(model.is_tied, reader.OptionalBool("tie_word_embeddings", false));
  ASSIGN_OR_RETURN(model.is_parallel, reader.OptionalBool("use_parallel_residual", true));
  ASSIGN_OR_RETURN(model.activation,
                   ReadActivation(reader, "hidden_act", kernels::Activation::kGeluExact));
  RETURN_IF_ERROR(ReadRotaryPositions(document, reader, model));
  model.end_of_text = {2};  // as in transformers
  model.begin_of_text = 0;
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "attention_bias", true));
  RETURN_IF_ERROR(base::CheckOtherConfigKeys(
      document, reader,
      {"attention_dropout", "hidden_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob",
       "classifier_dropout"}));
  return model;
}

nlohmann::ordered_json GptNeoXConfig(const Transformer& model) {
  nlohmann::ordered_json config = {
      {"architectures", {"GPTNeoXForCausalLM"}},
      {"model_type", "gpt_neox"},
      {"num_hidden_layers", model.blocks},
      {"hidden_size", model.width},
      {"num_attention_heads", model.heads},
      {"intermediate_size", model.hidden},
      {"max_position_embeddings", model.context},
      {"vocab_size", model.vocabulary},
      {"layer_norm_eps", model.norm_epsilon},
      {"hidden_act", NameInTransformers(model.activation)},
      {"use_parallel_residual", model.is_parallel},
      {"rotary_pct", RotaryShare(model.size_of_head(), model.rotary_size)},
      {"rotary_emb_base", model.rotary_base}};
  WriteScaling(model.rotary_scaling, config);
  return config;
}

// Returns the order of query_key_value's outputs: theirs have the queries, keys and values of one
// head after the other, ours have all queries first.
std::vector<int64_t> OrderOfHeads(const Transformer& model) {
  const int64_t D = model.size_of_head();
  std::vector<int64_t> order;
  for (int64_t head = 0; head < model.heads; ++head) {
    for (int64_t part = 0; part < 3; ++part) {
      for (int64_t i = 0; i < D; ++i) {
        order.push_back(part * model.width + head * D +
                        (part < 2 ? PlaceInHead(D, model.rotary_size, i) : i));
      }
    }
  }
  return order;
}

void AddGptNeoXBlock(const Transformer& model, int64_t block, ParameterNames& names) {
  const std::string prefix = absl::StrCat("layers.", block, ".");
  names.NextLayer();
  names.AddNorm("0.", prefix + "input_layernorm", true);
  names.AddLinears(1, model.width, {{prefix + "attention.query_key_value", 3 * model.width}}, true,
                   OrderOfHeads(model));
  names.AddLinears(3, model.width, {{prefix + "attention.dense", model.width}}, true);
  if (!model.is_parallel) names.NextLayer();
  const std::string mlp = model.is_parallel ? "shortcut.0." : "";
  names.AddNorm(mlp + "0.", prefix + "post_attention_layernorm", true);
  names.AddLinears(mlp + "1", model.width, {{prefix + "mlp.dense_h_to_4h", model.hidden}}, true);
  names.AddLinears(mlp + "2", model.hidden, {{prefix + "mlp.dense_4h_to_h", model.width}}, true);
}

std::vector<HuggingFaceParameter> GptNeoXParameters(const Transformer& model) {
  ParameterNames names(model.width);
  names.AddPlain("tokens", "embed_in.weight", {model.vocabulary, model.width});
  for (int64_t block = 0; block < model.blocks; ++block) AddGptNeoXBlock(model, block, names);
  names.NextLayer();
  names.AddNorm("", "final_layer_norm", true);
  names.AddHead(model);
  return std::move(names).Take();
}

}  // namespace

const TransformerFiles& GptNeoXFiles() {
  static const auto& files =
      *new TransformerFiles{.family = TransformerFamily::kGptNeoX,
                            .model_types = {"gpt_neox"},
                            .prefix = "gpt_neox.",
                            .token_table = "embed_in.weight",
                            .head = "embed_out.weight",
                            .dropout = {{"attention_dropout", 0.0}, {"hidden_dropout", 0.0}},
                            .read = ReadGptNeoX,
                            .config = GptNeoXConfig,
                            .parameters = GptNeoXParameters};
  return files;
}

}  // namespace stagecoach::engine
