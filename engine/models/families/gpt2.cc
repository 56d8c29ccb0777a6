// GPT2LMHeadModel.
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

absl::StatusOr<Transformer> ReadGpt2(const nlohmann::json& document, absl::string_view /*type*/,
                                     base::ObjectReader& reader) {
  Transformer model;
  ASSIGN_OR_RETURN(model.blocks, reader.OptionalInt64("n_layer", 12, kTransformerExtents));
  ASSIGN_OR_RETURN(model.width, reader.OptionalInt64("n_embd", 768, kTransformerExtents));
  ASSIGN_OR_RETURN(model.heads, reader.OptionalInt64("n_head", 12, kTransformerExtents));
  ASSIGN_OR_RETURN(model.context, reader.OptionalInt64("n_positions", 1024, kTransformerExtents));
  model.positions = model.context;
  ASSIGN_OR_RETURN(model.vocabulary,
                   reader.OptionalInt64("vocab_size", 50257, kTransformerExtents));
  ASSIGN_OR_RETURN(model.norm_epsilon, reader.OptionalDouble("layer_norm_epsilon", 1e-5));
  ASSIGN_OR_RETURN(model.is_tied, reader.OptionalBool("tie_word_embeddings", true));
  model.kv_heads = model.heads;
  model.hidden = 4 * model.width;
  if (document.contains("n_inner") && !document["n_inner"].is_null()) {
    ASSIGN_OR_RETURN(model.hidden, reader.RequiredInt64("n_inner", kTransformerExtents));
  }
  model.end_of_text = {50256};  // as in transformers
  model.begin_of_text = 50256;
  RETURN_IF_ERROR(
      ExpectText(document, reader, "activation_function", {"gelu_new", "gelu_pytorch_tanh"}));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "scale_attn_weights", true));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "scale_attn_by_inverse_layer_idx", false));
  RETURN_IF_ERROR(base::CheckOtherConfigKeys(
      document, reader,
      {"n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn", "n_special",
       "predict_special_tokens", "summary_type", "summary_use_proj", "summary_activation",
       "summary_proj_to_labels", "summary_first_dropout"}));
  return model;
}

nlohmann::ordered_json Gpt2Config(const Transformer& model) {
  const int64_t positions = std::max(model.positions, model.context);
  // Says that there is no dropout, since transformers would assume some.
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_layer", model.blocks},
          {"n_embd", model.width},
          {"n_head", model.heads},
          {"n_inner", model.hidden},
          {"n_positions", positions},
          {"n_ctx", positions},
          {"vocab_size", model.vocabulary},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"activation_function", "gelu_new"},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0}};
}

void AddGpt2Block(const Transformer& model, int64_t block, ParameterNames& names) {
  const std::string prefix = absl::StrCat("h.", block, ".");
  names.NextLayer();
  names.AddNorm("0.", prefix + "ln_1", true);
  names.AddConv1D(1, prefix + "attn.c_attn", model.width, 3 * model.width);
  names.AddConv1D(3, prefix + "attn.c_proj", model.width, model.width);
  names.NextLayer();
  names.AddNorm("0.", prefix + "ln_2", true);
  names.AddConv1D(1, prefix + "mlp.c_fc", model.width, model.hidden);
  names.AddConv1D(2, prefix + "mlp.c_proj", model.hidden, model.width);
}

std::vector<HuggingFaceParameter> Gpt2Parameters(const Transformer& model) {
  ParameterNames names(model.width);
  names.AddPlain("tokens", "wte.weight", {model.vocabulary, model.width});
  names.AddPositions(model, "wpe.weight");
  for (int64_t block = 0; block < model.blocks; ++block) AddGpt2Block(model, block, names);
  names.NextLayer();
  names.AddNorm("", "ln_f", true);
  names.AddHead(model);
  return std::move(names).Take();
}

}  // namespace

const TransformerFiles& Gpt2Files() {
  static const auto& files = *new TransformerFiles{
      .family = TransformerFamily::kGpt2,
      .model_types = {"gpt2"},
      .prefix = "transformer.",
      .token_table = "wte.weight",
      .dropout = {{"resid_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"attn_pdrop", 0.1}},
      .read = ReadGpt2,
      .config = Gpt2Config,
      .parameters = Gpt2Parameters};
  return files;
}

}  // namespace stagecoach::engine
