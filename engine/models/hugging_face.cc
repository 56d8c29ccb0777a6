#include "engine/models/hugging_face.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "engine/models/families/family.h"
#include "engine/models/families/resnet.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;

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

// Reads how bitsandbytes has quantized a model: nothing if it has not.
absl::StatusOr<std::optional<kernels::Quantization>> ReadQuantization(
    const nlohmann::json& document, ObjectReader& reader) {
  constexpr char kKey[] = "quantization_config";
  if (!reader.Has(kKey) || document[kKey].is_null()) return std::nullopt;
  ASSIGN_OR_RETURN(ObjectReader own, reader.RequiredObject(kKey));
  const auto expect = [&](const char* key, const char* only, const char* absent) -> absl::Status {
    ASSIGN_OR_RETURN(const std::string value, own.OptionalString(key, absent));
    if (value == only) return absl::OkStatus();
    return own.Error(key, absl::StrCat("is \"", value, "\", expected \"", only, "\""));
  };
  RETURN_IF_ERROR(expect("quant_method", "bitsandbytes", "bitsandbytes"));
  ASSIGN_OR_RETURN(const bool has_8_bits, own.OptionalBool("load_in_8bit", false));
  ASSIGN_OR_RETURN(const bool has_4_bits, own.OptionalBool("load_in_4bit", !has_8_bits));
  if (has_4_bits == has_8_bits) return own.Error("load_in_4bit", "expected this or load_in_8bit");
  ASSIGN_OR_RETURN(const bool is_double, own.OptionalBool("bnb_4bit_use_double_quant", false));
  if (has_4_bits) {
    RETURN_IF_ERROR(expect("bnb_4bit_quant_type", "nf4", "fp4"));
    RETURN_IF_ERROR(expect("bnb_4bit_quant_storage", "uint8", "uint8"));
  }
  constexpr char kSkipped[] = "llm_int8_skip_modules";
  const bool names_some = own.Has(kSkipped) && !document[kKey][kSkipped].is_null();
  for (size_t i = 0; names_some && i < document[kKey][kSkipped].size(); ++i) {
    ASSIGN_OR_RETURN(const base::ArrayReader skipped, own.RequiredArray(kSkipped));
    ASSIGN_OR_RETURN(const std::string name, skipped.String(i));
    if (name == "lm_head") continue;
    return skipped.Error(
        i, absl::StrCat("is \"", name, "\": only the head can be left as it is, \"lm_head\""));
  }
  if (has_8_bits) return kernels::Quantization::kInt8;
  return is_double ? kernels::Quantization::kNf4 : kernels::Quantization::kNf4Single;
}

nlohmann::ordered_json QuantizationConfigOf(kernels::Quantization quantization) {
  const bool has_8_bits = quantization == kernels::Quantization::kInt8;
  nlohmann::ordered_json config = {{"quant_method", "bitsandbytes"},
                                   {"load_in_4bit", !has_8_bits},
                                   {"load_in_8bit", has_8_bits}};
  if (has_8_bits) return config;
  config["bnb_4bit_quant_type"] = "nf4";
  config["bnb_4bit_use_double_quant"] = quantization == kernels::Quantization::kNf4;
  config["bnb_4bit_quant_storage"] = "uint8";
  config["bnb_4bit_compute_dtype"] = "float32";
  return config;
}

// The file of each family has its own.
using FilesOf = const TransformerFiles& (*)();
constexpr FilesOf kFamilies[] = {Gpt2Files, LlamaFiles, OptFiles, GptNeoXFiles, GemmaFiles};

const TransformerFiles& FilesOfFamily(TransformerFamily family) {
  return (*std::find_if(std::begin(kFamilies), std::end(kFamilies),
                        [&](FilesOf files) { return files().family == family; }))();
}

// Returns null if no family has models of that type.
const TransformerFiles* FindFiles(absl::string_view model_type) {
  for (const FilesOf files : kFamilies) {
    if (absl::c_linear_search(files().model_types, model_type)) return &files();
  }
  return nullptr;
}

std::string KnownTypes() {
  std::vector<std::string> types;
  for (const FilesOf files : kFamilies) {
    for (const absl::string_view type : files().model_types) {
      types.push_back(absl::StrCat("\"", type, "\""));
    }
  }
  return absl::StrCat(absl::StrJoin(types, ", "), " or \"resnet\"");
}

std::string ConfigOf(const Transformer& model) {
  nlohmann::ordered_json config = FilesOfFamily(model.family).config(model);
  config["tie_word_embeddings"] = model.is_tied;
  // Says which tokens have a meaning, and that no others do: transformers would assume some.
  config["bos_token_id"] = nullptr;
  if (model.begin_of_text.has_value()) config["bos_token_id"] = *model.begin_of_text;
  config["eos_token_id"] = nullptr;
  if (model.end_of_text.size() == 1) config["eos_token_id"] = model.end_of_text.front();
  if (model.end_of_text.size() > 1) config["eos_token_id"] = model.end_of_text;
  config["dtype"] = "float32";
  if (model.quantization.has_value()) {
    config["quantization_config"] = QuantizationConfigOf(*model.quantization);
  }
  return config.dump(2) + "\n";
}

std::vector<HuggingFaceParameter> ParametersOf(const Transformer& model) {
  return FilesOfFamily(model.family).parameters(model);
}

std::string PrefixOf(const Transformer& model) { return FilesOfFamily(model.family).prefix; }

std::string PrefixOf(const ImageClassifier& model) {
  return model.naming == ResNetNaming::kTransformers ? "resnet." : "";
}

}  // namespace

absl::StatusOr<HuggingFaceModel> ReadHuggingFaceModel(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json document, base::ParseJson(text));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("model_type"));
  if (type == "resnet") return ReadResNetConfig(document);
  const TransformerFiles* const files = FindFiles(type);
  if (files == nullptr) {
    return reader.Error("model_type", absl::StrCat("is \"", type, "\", expected ", KnownTypes()));
  }
  // These are read before the family's reader refuses the keys that nobody has asked for.
  for (const char* const key : {"eos_token_id", "bos_token_id", "quantization_config"}) {
    reader.Has(key);
  }
  ASSIGN_OR_RETURN(Transformer model, files->read(document, type, reader));
  ASSIGN_OR_RETURN(model.quantization, ReadQuantization(document, reader));
  RETURN_IF_ERROR(ReadMeanings(document, reader, model));
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
  const TransformerFiles* const files = FindFiles(type);
  std::vector<std::string> asked;
  if (files == nullptr) return "";
  for (const auto& [key, usual] : files->dropout) {
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
  const auto* const transformer = std::get_if<Transformer>(&model);
  const bool is_head = transformer != nullptr ? tensor == HuggingFaceHead(*transformer)
                                              : absl::StartsWith(tensor, "classifier.");
  return absl::StrCat(is_head ? "" : HuggingFacePrefix(model), tensor);
}

std::string HuggingFaceTokenTable(const Transformer& model) {
  return FilesOfFamily(model.family).token_table;
}

std::string HuggingFaceHead(const Transformer& model) { return FilesOfFamily(model.family).head; }

bool IsHuggingFaceBuffer(const HuggingFaceModel& model, absl::string_view tensor) {
  const auto* const transformer = std::get_if<Transformer>(&model);
  if (transformer == nullptr) {
    const std::vector<std::string> counters = HuggingFaceCountersOf(model);
    return std::find(counters.begin(), counters.end(), tensor) != counters.end();
  }
  if (tensor == HuggingFaceHead(*transformer)) return transformer->is_tied;
  return absl::c_any_of(
      std::array<absl::string_view, 5>{".attn.bias", ".attn.masked_bias", ".attention.bias",
                                       ".attention.masked_bias", ".rotary_emb.inv_freq"},
      [&](absl::string_view suffix) { return absl::EndsWith(tensor, suffix); });
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
