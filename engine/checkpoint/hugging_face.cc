#include "engine/checkpoint/hugging_face.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/hugging_face_keys.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "engine/checkpoint/hugging_face_resnet.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;

constexpr base::Int64Range kExtents = {.min = 1, .max = kMaxTransformerExtent};

// Checks a key whose value must be absent, null, or one of those.
absl::Status ExpectText(const nlohmann::json& document, ObjectReader& reader, const char* key,
                        const std::vector<std::string>& expected) {
  if (!reader.Has(key) || document[key].is_null()) return absl::OkStatus();
  for (const std::string& text : expected) {
    if (document[key] == text) return absl::OkStatus();
  }
  return base::DataError(absl::StrCat("$.", key, ": is ", document[key].dump(), ", expected \"",
                                      expected.front(), "\""));
}

absl::Status ExpectAbsentOr(const nlohmann::json& document, ObjectReader& reader, const char* key,
                            const nlohmann::json& expected) {
  if (!reader.Has(key) || document[key].is_null() || document[key] == expected) {
    return absl::OkStatus();
  }
  return base::DataError(absl::StrCat("$.", key, ": is ", document[key].dump(),
                                      ", which there is no layer for here; expected ",
                                      expected.dump()));
}

// Reads the tokens with a meaning that the model knows. An absent key leaves `model` unchanged.
absl::Status ReadMeanings(const nlohmann::json& document, ObjectReader& reader,
                          Transformer& model) {
  const auto is_known = [&model](int64_t id) { return id >= 0 && id < model.vocabulary; };
  const auto read = [&](const char* key, std::vector<int64_t>& ids) -> absl::Status {
    if (!reader.Has(key)) return absl::OkStatus();
    ids.clear();
    if (document[key].is_null()) return absl::OkStatus();
    if (!document[key].is_array()) {
      ASSIGN_OR_RETURN(ids.emplace_back(), reader.RequiredInt64(key));
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const base::ArrayReader array, reader.RequiredArray(key));
    for (size_t i = 0; i < array.size(); ++i) {
      ASSIGN_OR_RETURN(ids.emplace_back(), array.Int64(i));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(read("eos_token_id", model.end_of_text));
  std::vector<int64_t> begins;
  if (model.begin_of_text.has_value()) begins.push_back(*model.begin_of_text);
  RETURN_IF_ERROR(read("bos_token_id", begins));
  std::erase_if(model.end_of_text, [&](int64_t id) { return !is_known(id); });
  std::erase_if(begins, [&](int64_t id) { return !is_known(id); });
  if (begins.size() > 1) return reader.Error("bos_token_id", "has several ids, expected one");
  model.begin_of_text = begins.empty() ? std::nullopt : std::optional(begins.front());
  return absl::OkStatus();
}

absl::StatusOr<Transformer> ReadGpt2(const nlohmann::json& document) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  Transformer model;
  ASSIGN_OR_RETURN(model.blocks, reader.OptionalInt64("n_layer", 12, kExtents));
  ASSIGN_OR_RETURN(model.width, reader.OptionalInt64("n_embd", 768, kExtents));
  ASSIGN_OR_RETURN(model.heads, reader.OptionalInt64("n_head", 12, kExtents));
  ASSIGN_OR_RETURN(model.context, reader.OptionalInt64("n_positions", 1024, kExtents));
  model.positions = model.context;
  ASSIGN_OR_RETURN(model.vocabulary, reader.OptionalInt64("vocab_size", 50257, kExtents));
  ASSIGN_OR_RETURN(model.norm_epsilon, reader.OptionalDouble("layer_norm_epsilon", 1e-5));
  ASSIGN_OR_RETURN(model.is_tied, reader.OptionalBool("tie_word_embeddings", true));
  model.kv_heads = model.heads;
  model.hidden = 4 * model.width;
  if (document.contains("n_inner") && !document["n_inner"].is_null()) {
    ASSIGN_OR_RETURN(model.hidden, reader.RequiredInt64("n_inner", kExtents));
  }
  model.end_of_text = {50256};  // as in transformers
  model.begin_of_text = 50256;
  RETURN_IF_ERROR(ReadMeanings(document, reader, model));
  RETURN_IF_ERROR(
      ExpectText(document, reader, "activation_function", {"gelu_new", "gelu_pytorch_tanh"}));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "scale_attn_weights", true));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "scale_attn_by_inverse_layer_idx", false));
  RETURN_IF_ERROR(CheckOtherConfigKeys(
      document, reader,
      {"n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn", "n_special",
       "predict_special_tokens", "summary_type", "summary_use_proj", "summary_activation",
       "summary_proj_to_labels", "summary_first_dropout"}));
  return model;
}

// Reads an object that says how positions are rotated, in either spelling: "default", and the base
// of its frequencies. Everything else scales them.
absl::StatusOr<double> ReadRotation(ObjectReader reader, const nlohmann::json& rotation,
                                    double base) {
  for (const char* const key : {"rope_type", "type"}) {
    ASSIGN_OR_RETURN(const std::string type, reader.OptionalString(key, "default"));
    if (type == "default") continue;
    return reader.Error(key, absl::StrCat("is \"", type, "\", expected \"default\""));
  }
  ASSIGN_OR_RETURN(base, reader.OptionalDouble("rope_theta", base));
  ASSIGN_OR_RETURN(const double share, reader.OptionalDouble("partial_rotary_factor", 1.0));
  if (share != 1.0) {
    return reader.Error("partial_rotary_factor",
                        absl::StrCat("is ", share, ", which there is no layer for here"));
  }
  RETURN_IF_ERROR(RefuseUnknownKeys(rotation, reader));
  return base;
}

// Newer versions have it in an object of its own.
absl::StatusOr<double> ReadRotaryBase(const nlohmann::json& document, ObjectReader& reader) {
  ASSIGN_OR_RETURN(double base, reader.OptionalDouble("rope_theta", 10000.0));
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.Has(key) || document[key].is_null()) continue;
    ASSIGN_OR_RETURN(ObjectReader rotation, reader.RequiredObject(key));
    ASSIGN_OR_RETURN(base, ReadRotation(std::move(rotation), document[key], base));
  }
  return base;
}

absl::StatusOr<Transformer> ReadLlama(const nlohmann::json& document) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  Transformer model = {.family = TransformerFamily::kLlama};
  ASSIGN_OR_RETURN(model.blocks, reader.RequiredInt64("num_hidden_layers", kExtents));
  ASSIGN_OR_RETURN(model.width, reader.RequiredInt64("hidden_size", kExtents));
  ASSIGN_OR_RETURN(model.heads, reader.RequiredInt64("num_attention_heads", kExtents));
  ASSIGN_OR_RETURN(model.kv_heads,
                   reader.OptionalInt64("num_key_value_heads", model.heads, kExtents));
  ASSIGN_OR_RETURN(model.hidden, reader.RequiredInt64("intermediate_size", kExtents));
  ASSIGN_OR_RETURN(model.context, reader.OptionalInt64("max_position_embeddings", 2048, kExtents));
  ASSIGN_OR_RETURN(model.vocabulary, reader.OptionalInt64("vocab_size", 32000, kExtents));
  ASSIGN_OR_RETURN(model.norm_epsilon, reader.OptionalDouble("rms_norm_eps", 1e-6));
  ASSIGN_OR_RETURN(model.rotary_base, ReadRotaryBase(document, reader));
  ASSIGN_OR_RETURN(model.is_tied, reader.OptionalBool("tie_word_embeddings", false));
  model.end_of_text = {2};  // as in transformers
  model.begin_of_text = 1;
  RETURN_IF_ERROR(ReadMeanings(document, reader, model));
  RETURN_IF_ERROR(ExpectText(document, reader, "hidden_act", {"silu"}));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "attention_bias", false));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "mlp_bias", false));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "rope_interleaved", false));
  RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "partial_rotary_factor", 1.0));
  if (model.heads > 0 && model.width % model.heads == 0) {
    RETURN_IF_ERROR(ExpectAbsentOr(document, reader, "head_dim", model.width / model.heads));
  }
  // These determine how the products are divided, not what they are.
  RETURN_IF_ERROR(CheckOtherConfigKeys(
      document, reader, {"attention_dropout", "pretraining_tp", "max_sequence_length"}));
  return model;
}

// Gathers parameters in the order of layers.
class Names {
 public:
  explicit Names(int64_t width) : width_(width) {}

  void NextLayer() { ++layer_; }
  void Add(absl::string_view name, std::vector<HuggingFacePiece> pieces) {
    parameters_.push_back({absl::StrCat("layer ", layer_, ": ", name), std::move(pieces)});
  }
  void AddPlain(absl::string_view name, absl::string_view tensor, std::vector<int64_t> shape) {
    Add(name, {{std::string(tensor), std::move(shape)}});
  }
  // Adds the gain and offset of a norm.
  void AddNorm(absl::string_view inside, absl::string_view tensor, bool has_offset) {
    AddPlain(absl::StrCat(inside, "gamma"), absl::StrCat(tensor, ".weight"), {width_});
    if (has_offset) AddPlain(absl::StrCat(inside, "beta"), absl::StrCat(tensor, ".bias"), {width_});
  }
  // Adds a layer with a bias, and weights laid out like ours.
  void AddConv1D(int inside, absl::string_view tensor, int64_t inputs, int64_t outputs) {
    AddPlain(absl::StrCat(inside, ".weight"), absl::StrCat(tensor, ".weight"), {inputs, outputs});
    AddPlain(absl::StrCat(inside, ".bias"), absl::StrCat(tensor, ".bias"), {outputs});
  }
  // Adds several linear layers as one, without biases.
  void AddLinears(int inside, int64_t inputs,
                  const std::vector<std::pair<std::string, int64_t>>& linears) {
    std::vector<HuggingFacePiece> pieces;
    for (const auto& [tensor, outputs] : linears) {
      pieces.push_back({absl::StrCat(tensor, ".weight"), {outputs, inputs}, true});
    }
    Add(absl::StrCat(inside, ".weight"), std::move(pieces));
  }

  std::vector<HuggingFaceParameter> Take() && { return std::move(parameters_); }

 private:
  int64_t width_;
  int layer_ = 0;
  std::vector<HuggingFaceParameter> parameters_;
};

void AddGpt2Block(const Transformer& model, int64_t block, Names& names) {
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

void AddLlamaBlock(const Transformer& model, int64_t block, Names& names) {
  const std::string prefix = absl::StrCat("layers.", block, ".");
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t of_kv = model.kv_heads * (model.width / model.heads);
  names.NextLayer();
  names.AddNorm("0.", prefix + "input_layernorm", false);
  names.AddLinears(1, model.width,
                   {{attention + "q_proj", model.width},
                    {attention + "k_proj", of_kv},
                    {attention + "v_proj", of_kv}});
  names.AddLinears(3, model.width, {{attention + "o_proj", model.width}});
  names.NextLayer();
  names.AddNorm("0.", prefix + "post_attention_layernorm", false);
  names.AddLinears(1, model.width,
                   {{mlp + "gate_proj", model.hidden}, {mlp + "up_proj", model.hidden}});
  names.AddLinears(3, model.hidden, {{mlp + "down_proj", model.width}});
}

std::string ConfigOf(const Transformer& model) {
  nlohmann::ordered_json config;
  if (model.family == TransformerFamily::kGpt2) {
    config = {{"architectures", {"GPT2LMHeadModel"}},
              {"model_type", "gpt2"},
              {"n_layer", model.blocks},
              {"n_embd", model.width},
              {"n_head", model.heads},
              {"n_inner", model.hidden},
              {"n_positions", std::max(model.positions, model.context)},
              {"n_ctx", std::max(model.positions, model.context)},
              {"vocab_size", model.vocabulary},
              {"layer_norm_epsilon", model.norm_epsilon},
              {"activation_function", "gelu_new"}};
  } else {
    config = {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"},
              {"num_hidden_layers", model.blocks},     {"hidden_size", model.width},
              {"num_attention_heads", model.heads},    {"num_key_value_heads", model.kv_heads},
              {"intermediate_size", model.hidden},     {"max_position_embeddings", model.context},
              {"vocab_size", model.vocabulary},        {"rms_norm_eps", model.norm_epsilon},
              {"rope_theta", model.rotary_base},       {"hidden_act", "silu"}};
  }
  config["tie_word_embeddings"] = model.is_tied;
  // Says that there is no dropout, and that no token has a meaning, since transformers would assume
  // otherwise.
  for (const char* const key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    if (model.family == TransformerFamily::kGpt2) config[key] = 0.0;
  }
  config["bos_token_id"] = nullptr;
  if (model.begin_of_text.has_value()) config["bos_token_id"] = *model.begin_of_text;
  config["eos_token_id"] = nullptr;
  if (model.end_of_text.size() == 1) config["eos_token_id"] = model.end_of_text.front();
  if (model.end_of_text.size() > 1) config["eos_token_id"] = model.end_of_text;
  config["dtype"] = "float32";
  return config.dump(2) + "\n";
}

std::vector<HuggingFaceParameter> ParametersOf(const Transformer& model) {
  const bool is_gpt2 = model.family == TransformerFamily::kGpt2;
  Names names(model.width);
  names.AddPlain("tokens", is_gpt2 ? "wte.weight" : "embed_tokens.weight",
                 {model.vocabulary, model.width});
  if (is_gpt2) {
    const int64_t all = std::max(model.positions, model.context), later = all - model.context;
    const std::vector<int64_t> shape = {all, model.width};
    names.Add("positions", {{"wpe.weight", shape, false, 0, model.context}});
    if (later > 0) {
      names.Add("later_positions", {{"wpe.weight", shape, false, model.context, later}});
    }
  }
  for (int64_t block = 0; block < model.blocks; ++block) {
    is_gpt2 ? AddGpt2Block(model, block, names) : AddLlamaBlock(model, block, names);
  }
  names.NextLayer();
  names.AddNorm("", is_gpt2 ? "ln_f" : "norm", is_gpt2);
  names.NextLayer();
  if (!model.is_tied) {
    names.AddPlain("weight", "lm_head.weight", {model.vocabulary, model.width});
  }
  return std::move(names).Take();
}

std::string PrefixOf(const Transformer& model) {
  return model.family == TransformerFamily::kGpt2 ? "transformer." : "model.";
}

std::string PrefixOf(const ImageClassifier& model) {
  return model.naming == ResNetNaming::kTransformers ? "resnet." : "";
}

}  // namespace

absl::StatusOr<HuggingFaceModel> ReadHuggingFaceModel(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json document, base::ParseJson(text));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("model_type"));
  if (type == "resnet") return ReadResNetConfig(document);
  if (type != "gpt2" && type != "llama") {
    return reader.Error(
        "model_type",
        absl::StrCat("is \"", type, "\", expected \"gpt2\", \"llama\" or \"resnet\""));
  }
  ASSIGN_OR_RETURN(const Transformer model,
                   type == "gpt2" ? ReadGpt2(document) : ReadLlama(document));
  RETURN_IF_ERROR(CheckTransformer(model));
  return model;
}

absl::StatusOr<Transformer> ReadHuggingFaceConfig(absl::string_view text) {
  ASSIGN_OR_RETURN(const HuggingFaceModel model, ReadHuggingFaceModel(text));
  if (const auto* const found = std::get_if<Transformer>(&model)) return *found;
  return base::DataError("$.model_type: is of a model that does not take tokens");
}

absl::Status ReadHuggingFaceGeneration(absl::string_view text, Transformer& model) {
  ASSIGN_OR_RETURN(const nlohmann::json document, base::ParseJson(text));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  return ReadMeanings(document, reader, model);
}

absl::StatusOr<std::string> HuggingFaceDropoutOf(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json document, base::ParseJson(text));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("model_type"));
  std::vector<std::pair<const char*, double>> rates = {{"attention_dropout", 0.0}};
  if (type == "gpt2") rates = {{"resid_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"attn_pdrop", 0.1}};
  std::vector<std::string> asked;
  for (const auto& [key, usual] : rates) {
    ASSIGN_OR_RETURN(const double rate, reader.OptionalDouble(key, usual));
    if (rate != 0.0) asked.push_back(absl::StrCat(key, " ", rate));
  }
  return absl::StrJoin(asked, ", ");
}

std::string HuggingFaceConfigOf(const HuggingFaceModel& model) {
  if (const auto* const resnet = std::get_if<ImageClassifier>(&model)) {
    return ResNetConfigOf(*resnet);
  }
  return ConfigOf(std::get<Transformer>(model));
}

std::vector<HuggingFaceParameter> HuggingFaceParametersOf(const HuggingFaceModel& model) {
  if (const auto* const resnet = std::get_if<ImageClassifier>(&model)) {
    return ResNetParametersOf(*resnet);
  }
  return ParametersOf(std::get<Transformer>(model));
}

std::vector<std::string> HuggingFaceCountersOf(const HuggingFaceModel& model) {
  const auto* const resnet = std::get_if<ImageClassifier>(&model);
  return resnet == nullptr ? std::vector<std::string>() : ResNetCountersOf(*resnet);
}

std::string HuggingFacePrefix(const HuggingFaceModel& model) {
  return std::visit([](const auto& known) { return PrefixOf(known); }, model);
}

std::string HuggingFaceTensorName(const HuggingFaceModel& model, absl::string_view tensor) {
  const bool is_head =
      absl::StartsWith(tensor, "lm_head.") || absl::StartsWith(tensor, "classifier.");
  return absl::StrCat(is_head ? "" : HuggingFacePrefix(model), tensor);
}

bool IsHuggingFaceBuffer(const HuggingFaceModel& model, absl::string_view tensor) {
  const auto* const transformer = std::get_if<Transformer>(&model);
  if (transformer == nullptr) {
    const std::vector<std::string> counters = HuggingFaceCountersOf(model);
    return std::find(counters.begin(), counters.end(), tensor) != counters.end();
  }
  if (tensor == "lm_head.weight") return transformer->is_tied;
  return absl::EndsWith(tensor, ".attn.bias") || absl::EndsWith(tensor, ".attn.masked_bias") ||
         absl::EndsWith(tensor, ".rotary_emb.inv_freq");
}

absl::StatusOr<HuggingFaceModel> HuggingFaceModelOf(absl::string_view model_file,
                                                    const kernels::Shape& input, int64_t outputs) {
  absl::StatusOr<Transformer> transformer = TransformerOf(model_file);
  if (transformer.ok()) {
    transformer->context = input.elements();
    transformer->vocabulary = outputs;
    return *std::move(transformer);
  }
  const absl::StatusOr<ResNet> net = ResNetOf(model_file);
  if (net.ok()) {
    return ImageClassifier{.net = *net, .channels = input.dim(0), .classes = outputs};
  }
  if (!absl::IsFailedPrecondition(net.status())) return net.status();
  return base::DataError(absl::StrCat(transformer.status().message(),
                                      ", nor of a ResNet, as one for \"resnet18\" has"),
                         absl::StatusCode::kFailedPrecondition);
}

std::string ModelFileOf(const HuggingFaceModel& model) {
  if (const auto* const resnet = std::get_if<ImageClassifier>(&model)) {
    return ModelFileOf(resnet->net);
  }
  return ModelFileOf(std::get<Transformer>(model));
}

}  // namespace stagecoach::engine
