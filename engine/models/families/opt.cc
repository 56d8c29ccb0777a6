// OPTForCausalLM.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/hugging_face_keys.h"
#include "base/text/json.h"
#include "engine/models/families/family.h"

namespace stagecoach::engine {
namespace {

absl::StatusOr<Transformer> ReadOpt(const nlohmann::json& document, absl::string_view /*type*/,
                                    base::ObjectReader& reader) {
  Transformer model = {.family = TransformerFamily::kOpt};
  ASSIGN_OR_RETURN(model.blocks,
                   reader.OptionalInt64("num_hidden_layers", 12, kTransformerExtents));
  ASSIGN_OR_RETURN(model.width, reader.OptionalInt64("hidden_size", 768, kTransformerExtents));
  ASSIGN_OR_RETURN(model.heads,
                   reader.OptionalInt64("num_attention_heads", 12, kTransformerExtents));
  model.kv_heads = model.heads;
  ASSIGN_OR_RETURN(model.hidden, reader.OptionalInt64("ffn_dim", 3072, kTransformerExtents));
  ASSIGN_OR_RETURN(model.context,
                   reader.OptionalInt64("max_position_embeddings", 2048, kTransformerExtents));
  model.positions = model.context;
  ASSIGN_OR_RETURN(model.vocabulary,
                   reader.OptionalInt64("vocab_size", 50272, kTransformerExtents));
  ASSIGN_OR_RETURN(model.is_tied, reader.OptionalBool("tie_word_embeddings", true));
  ASSIGN_OR_RETURN(model.activation,
                   ReadActivation(reader, "activation_function", kernels::Activation::kRelu));
  model.end_of_text = {2};  // as in transformers
  model.begin_of_text = 2;
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "word_embed_proj_dim", model.width));
  for (const auto& [key, expected] :
       {std::pair("do_layer_norm_before", true), std::pair("_remove_final_layer_norm", false),
        std::pair("enable_bias", true), std::pair("layer_norm_elementwise_affine", true)}) {
    RETURN_IF_ERROR(ExpectAbsentOr(document, reader, key, expected));
  }
  RETURN_IF_ERROR(base::CheckOtherConfigKeys(
      document, reader,
      {"dropout", "attention_dropout", "activation_dropout", "layerdrop", "init_std"}));
  return model;
}

nlohmann::ordered_json OptConfig(const Transformer& model) {
  // Says that there is no dropout, since transformers would assume some.
  return {{"architectures", {"OPTForCausalLM"}},
          {"model_type", "opt"},
          {"num_hidden_layers", model.blocks},
          {"hidden_size", model.width},
          {"word_embed_proj_dim", model.width},
          {"num_attention_heads", model.heads},
          {"ffn_dim", model.hidden},
          {"max_position_embeddings", std::max(model.positions, model.context)},
          {"vocab_size", model.vocabulary},
          {"activation_function", NameInTransformers(model.activation)},
          {"do_layer_norm_before", true},
          {"dropout", 0.0},
          {"attention_dropout", 0.0},
          {"layerdrop", 0.0}};
}

void AddOptBlock(const Transformer& model, int64_t block, ParameterNames& names) {
  const std::string prefix = absl::StrCat("decoder.layers.", block, ".");
  const std::string attention = prefix + "self_attn.";
  names.NextLayer();
  names.AddNorm("0.", prefix + "self_attn_layer_norm", true);
  names.AddLinears(1, model.width,
                   {{attention + "q_proj", model.width},
                    {attention + "k_proj", model.width},
                    {attention + "v_proj", model.width}},
                   true);
  names.AddLinears(3, model.width, {{attention + "out_proj", model.width}}, true);
  names.NextLayer();
  names.AddNorm("0.", prefix + "final_layer_norm", true);
  names.AddLinears(1, model.width, {{prefix + "fc1", model.hidden}}, true);
  names.AddLinears(2, model.hidden, {{prefix + "fc2", model.width}}, true);
}

std::vector<HuggingFaceParameter> OptParameters(const Transformer& model) {
  ParameterNames names(model.width);
  names.AddPlain("tokens", "decoder.embed_tokens.weight", {model.vocabulary, model.width});
  names.AddPositions(model, "decoder.embed_positions.weight");
  for (int64_t block = 0; block < model.blocks; ++block) AddOptBlock(model, block, names);
  names.NextLayer();
  names.AddNorm("", "decoder.final_layer_norm", true);
  names.AddHead(model);
  return std::move(names).Take();
}

}  // namespace

const TransformerFiles& OptFiles() {
  static const auto& files = *new TransformerFiles{.family = TransformerFamily::kOpt,
                                                   .model_types = {"opt"},
                                                   .prefix = "model.",
                                                   .token_table = "decoder.embed_tokens.weight",
                                                   .dropout = {{"dropout", 0.1},
                                                               {"attention_dropout", 0.0},
                                                               {"activation_dropout", 0.0},
                                                               {"layerdrop", 0.0}},
                                                   .read = ReadOpt,
                                                   .config = OptConfig,
                                                   .parameters = OptParameters};
  return files;
}

}  // namespace stagecoach::engine
