#include "engine/checkpoint/peft.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/files/stored_matrix.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/checkpoint/parameter_reader.h"
#include "engine/models/hugging_face.h"
#include "engine/models/hugging_face_model.h"
#include "engine/models/model_file.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;
using kernels::DType;
using nlohmann::json;

constexpr char kAdapterConfig[] = "adapter_config.json";
constexpr char kTensors[] = "adapter_model.safetensors";
constexpr int64_t kMaxAdapterConfigBytes = 1'000'000;
constexpr absl::string_view kMatrices[] = {"lora_A", "lora_B"};

// Keys that have no part in what adapters compute once they are trained, or that only repeat what
// the model says.
constexpr absl::string_view kIgnoredKeys[] = {"auto_mapping",        "base_model_name_or_path",
                                              "fan_in_fan_out",      "inference_mode",
                                              "megatron_config",     "megatron_core",
                                              "peft_version",        "revision",
                                              "runtime_config",      "task_type",
                                              "loftq_config",        "corda_config",
                                              "eva_config",          "init_lora_weights",
                                              "ensure_weight_tying", "qalora_group_size"};

// What PEFT calls the modules of the kinds of layers that are trained as a whole, in all families.
struct WholeModules {
  const char* kind;
  std::vector<absl::string_view> names;
};
const std::vector<WholeModules>& AllWholeModules() {
  static const auto& all = *new std::vector<WholeModules>{
      {"embedding", {"embed_tokens", "embed_positions", "wte", "wpe", "embed_in"}},
      {"head", {"lm_head", "embed_out"}},
      {"norms",
       {"norm", "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
        "post_feedforward_layernorm", "q_norm", "k_norm", "ln_1", "ln_2", "ln_f",
        "self_attn_layer_norm", "final_layer_norm"}}};
  return all;
}

// What a configuration says. `ties`: the embedding and the head are trained as one
// ("ensure_weight_tying").
struct PeftConfig {
  LoraOptions lora;
  bool ties = false;
};

// Reads the key of such modules, each with the path to it or its end.
absl::Status ReadWholeModules(const json& document, ObjectReader& reader, PeftConfig& config) {
  constexpr char kKey[] = "modules_to_save";
  if (!reader.Has(kKey) || document[kKey].is_null()) return absl::OkStatus();
  std::set<absl::string_view> kinds;
  ASSIGN_OR_RETURN(const base::ArrayReader modules, reader.RequiredArray(kKey));
  for (size_t i = 0; i < modules.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string module, modules.String(i));
    const std::string name = module.substr(module.rfind('.') + 1);
    const auto found = absl::c_find_if(AllWholeModules(), [&](const WholeModules& of) {
      return absl::c_linear_search(of.names, name);
    });
    if (found == AllWholeModules().end()) {
      return modules.Error(i, absl::StrCat("is \"", module,
                                           "\": only embeddings, heads and norms "
                                           "are trained as a whole here"));
    }
    kinds.insert(found->kind);
  }
  if (config.ties && (kinds.contains("embedding") || kinds.contains("head"))) {
    kinds.insert({"embedding", "head"});
  }
  for (const WholeModules& of : AllWholeModules()) {
    if (kinds.contains(of.kind)) config.lora.trained.emplace_back(of.kind);
  }
  return absl::OkStatus();
}

// A parameter of a layer that is trained as a whole, in the model's own form.
struct WholePlace {
  std::string parameter;  // ours; for a tied head, the embedding's
  std::string tensor;     // theirs
  HuggingFacePiece piece;
  bool is_copy = false;  // a tied head, whose values are the embedding's
};

std::vector<WholePlace> WholePlacesOf(const Transformer& model, const LoraOptions& lora) {
  std::vector<WholePlace> places;
  const auto add = [&](const std::string& parameter, const HuggingFacePiece& piece,
                       absl::string_view tensor, bool is_copy) {
    places.push_back(
        {.parameter = parameter,
         .tensor = absl::StrCat("base_model.model.", HuggingFaceTensorName(model, tensor)),
         .piece = piece,
         .is_copy = is_copy});
  };
  const std::string head = HuggingFaceHead(model), table = HuggingFaceTokenTable(model);
  for (const HuggingFaceParameter& parameter : HuggingFaceParametersOf(model)) {
    const HuggingFacePiece& piece = parameter.pieces.front();
    const absl::string_view name = parameter.name;
    const bool is_norm = absl::EndsWith(name, "gamma") || absl::EndsWith(name, "beta");
    const bool is_embedding = absl::StartsWith(name, "layer 0: ");
    const char* const kind = is_embedding           ? "embedding"
                             : is_norm              ? "norms"
                             : piece.tensor == head ? "head"
                                                    : "";
    if (!lora.trains(kind)) continue;
    add(parameter.name, piece, piece.tensor, false);
    if (model.is_tied && piece.tensor == table) add(parameter.name, piece, head, true);
  }
  return places;
}

// Returns whether a value is what a key has if nothing is asked of it.
bool IsNothing(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

absl::StatusOr<PeftConfig> ParseConfig(absl::string_view text) {
  ASSIGN_OR_RETURN(const json document,
                   base::ParseJson(text, {.max_bytes = kMaxAdapterConfigBytes}));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("peft_type"));
  if (type != "LORA") return reader.Error("peft_type", "is not \"LORA\"");
  PeftConfig config;
  LoraOptions& options = config.lora;
  ASSIGN_OR_RETURN(options.rank, reader.RequiredInt64("r", {.min = 1, .max = kMaxLoraRank}));
  ASSIGN_OR_RETURN(options.alpha, reader.RequiredDouble("lora_alpha", {.min = 1e-6, .max = 1e6}));
  ASSIGN_OR_RETURN(options.dropout,
                   reader.OptionalDouble("lora_dropout", 0.0, {.min = 0.0, .max = 0.999}));
  ASSIGN_OR_RETURN(options.is_rank_stabilized, reader.OptionalBool("use_rslora", false));
  ASSIGN_OR_RETURN(const std::string bias, reader.OptionalString("bias", "none"));
  if (bias != "none") return reader.Error("bias", "is not \"none\": biases are not trained here");
  ASSIGN_OR_RETURN(config.ties, reader.OptionalBool("ensure_weight_tying", false));
  RETURN_IF_ERROR(ReadWholeModules(document, reader, config));
  if (!reader.Has("target_modules")) {
    return reader.Error("target_modules", "is missing: expected the names of linear layers");
  }
  const json& targets = document["target_modules"];
  if (targets.is_array()) {
    for (const json& target : targets) {
      if (!target.is_string()) return reader.Error("target_modules", "expected names");
      options.targets.push_back(target);
    }
    std::sort(options.targets.begin(), options.targets.end());
  }
  if (options.targets.empty() && targets != "all-linear") {
    return reader.Error("target_modules", "expected a list of names, or \"all-linear\"");
  }
  for (const std::string& key : reader.Keys()) {
    const bool is_known =
        std::find(std::begin(kIgnoredKeys), std::end(kIgnoredKeys), key) !=
            std::end(kIgnoredKeys) ||
        absl::c_linear_search(std::array<absl::string_view, 8>{"peft_type", "r", "lora_alpha",
                                                               "lora_dropout", "use_rslora", "bias",
                                                               "target_modules", "modules_to_save"},
                              key);
    if (is_known || IsNothing(document[key])) continue;
    return reader.Error(key, "is not supported");
  }
  return config;
}

// Returns the checkpoint's transformer and its adapters.
absl::StatusOr<std::pair<Transformer, LoraOptions>> AdaptedModelOf(const Checkpoint& checkpoint) {
  const auto refuse = [&](const auto&... why) {
    return base::DataError(absl::StrCat(checkpoint.path(), ": ", why...),
                           absl::StatusCode::kFailedPrecondition);
  };
  const std::string& text = checkpoint.manifest().model_source;
  if (text.empty()) return refuse("it does not say how its model is made");
  ASSIGN_OR_RETURN(const std::optional<LoraOptions> lora, LoraOf(text));
  if (!lora.has_value()) return refuse("its model has no adapters");
  // With as many positions as the run's samples have.
  const Manifest& manifest = checkpoint.manifest();
  const auto model = HuggingFaceModelOf(text, manifest.input, manifest.outputs());
  if (!model.ok()) return refuse(model.status().message());
  const auto* const transformer = std::get_if<Transformer>(&*model);
  if (transformer == nullptr) return refuse("its model is no transformer");
  return std::pair(*transformer, *lora);
}

}  // namespace

std::string AdapterPlace::ParameterOf(absl::string_view matrix) const {
  return absl::StrCat(layer, name, ".", matrix);
}

std::string AdapterPlace::TensorOf(absl::string_view matrix) const {
  return absl::StrCat("base_model.model.", module, ".", matrix, ".weight");
}

std::vector<AdapterPlace> AdapterPlacesOf(const Transformer& model, const LoraOptions& lora) {
  std::vector<AdapterPlace> places;
  for (const HuggingFaceParameter& parameter : HuggingFaceParametersOf(model)) {
    absl::string_view layer = parameter.name;
    if (!absl::ConsumeSuffix(&layer, ".weight")) continue;
    int64_t first = 0;
    for (const HuggingFacePiece& piece : parameter.pieces) {
      std::string module = HuggingFaceTensorName(model, piece.tensor);
      module.resize(module.size() - absl::string_view(".weight").size());
      const std::string name = module.substr(module.rfind('.') + 1);
      const int64_t begin = std::exchange(first, first + piece.columns());
      if (!lora.adapts(name)) continue;
      places.push_back({.layer = absl::StrCat(layer, "."),
                        .name = name,
                        .module = std::move(module),
                        .inputs = piece.rows(),
                        .first = begin,
                        .outputs = piece.columns(),
                        .order = piece.order});
    }
  }
  return places;
}

bool IsPeftFolder(const std::string& folder) {
  return base::Exists(absl::StrCat(folder, "/", kAdapterConfig));
}

namespace {

absl::StatusOr<PeftConfig> ReadConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kAdapterConfig);
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxAdapterConfigBytes));
  absl::StatusOr<PeftConfig> config = ParseConfig(text);
  if (!config.ok()) return base::InFile(base::WithJsonPlace(config.status(), text), path);
  return config;
}

}  // namespace

absl::StatusOr<LoraOptions> ReadPeftConfig(const std::string& folder) {
  ASSIGN_OR_RETURN(PeftConfig config, ReadConfig(folder));
  return std::move(config.lora);
}

struct PeftFolder::Contents {
  struct Matrix {
    HuggingFacePiece piece;
    SafetensorsEntry entry;
  };

  std::string path;
  LoraOptions lora;
  base::FileReader file;
  std::map<std::string, Matrix, std::less<>> matrices;  // by our name
};

absl::StatusOr<PeftFolder> PeftFolder::Open(const std::string& folder, const Transformer& model) {
  ASSIGN_OR_RETURN(PeftConfig config, ReadConfig(folder));
  LoraOptions& lora = config.lora;
  if (model.is_tied && !config.ties && (lora.trains("embedding") || lora.trains("head"))) {
    return base::DataError(
        absl::StrCat(folder, "/", kAdapterConfig,
                     ": $.modules_to_save: the head's weight is the embedding's table, of which "
                     "PEFT has trained "
                     "copies apart, since \"ensure_weight_tying\" is not set; they are one here"));
  }
  const std::string path = absl::StrCat(folder, "/", kTensors);
  ASSIGN_OR_RETURN(base::FileReader file, base::FileReader::Open(path, /*follows_links=*/true));
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(file);
  if (!header.ok()) return base::Annotate(header.status(), path);
  std::map<std::string, SafetensorsEntry> entries;
  for (SafetensorsEntry& entry : header->tensors) {
    std::string name = entry.name;
    entries.emplace(std::move(name), std::move(entry));
  }
  const auto refuse = [&](const auto&... why) {
    return base::DataError(absl::StrCat(path, ": ", why...));
  };
  const auto contents = std::make_shared<Contents>(
      Contents{.path = path, .lora = std::move(lora), .file = std::move(file), .matrices = {}});
  for (const AdapterPlace& place : AdapterPlacesOf(model, contents->lora)) {
    using Order = std::vector<int64_t>;
    for (const absl::string_view matrix : kMatrices) {
      const std::string tensor = place.TensorOf(matrix);
      const auto found = entries.find(tensor);
      if (found == entries.end()) return refuse("the tensor \"", tensor, "\" is missing");
      const bool is_a = matrix == kMatrices[0];
      const int64_t rows = is_a ? place.inputs : contents->lora.rank;
      const int64_t columns = is_a ? contents->lora.rank : place.outputs;
      const kernels::Shape expected{columns, rows};
      if (found->second.shape != expected) {
        return refuse("the tensor \"", tensor, "\" has the shape ", found->second.shape.ToString(),
                      ", expected ", expected.ToString());
      }
      const std::optional<DType>& type = found->second.type;
      if (!type.has_value() || !IsFloatingPoint(*type)) {
        return refuse("the tensor \"", tensor, "\" has integers");
      }
      contents->matrices.emplace(place.ParameterOf(matrix),
                                 Contents::Matrix{{.tensor = tensor,
                                                   .shape = {columns, rows},
                                                   .is_transposed = true,
                                                   .order = is_a ? Order() : place.order},
                                                  std::move(found->second)});
      entries.erase(found);
    }
  }
  // Several parameters of ours may be parts of one tensor.
  std::set<std::string> whole;
  for (WholePlace& place : WholePlacesOf(model, contents->lora)) {
    const auto found = entries.find(place.tensor);
    if (found == entries.end()) {
      return refuse("the tensor \"", place.tensor,
                    "\" is missing: layers that are trained as a whole are all of a kind here");
    }
    const kernels::Shape expected(place.piece.shape);
    if (found->second.shape != expected) {
      return refuse("the tensor \"", place.tensor, "\" has the shape ",
                    found->second.shape.ToString(), ", expected ", expected.ToString());
    }
    if (!found->second.type.has_value() || !IsFloatingPoint(*found->second.type)) {
      return refuse("the tensor \"", place.tensor, "\" has integers");
    }
    whole.insert(place.tensor);
    if (place.is_copy) continue;
    place.piece.tensor = place.tensor;
    contents->matrices.emplace(place.parameter,
                               Contents::Matrix{std::move(place.piece), found->second});
  }
  for (const std::string& tensor : whole) entries.erase(tensor);
  if (!entries.empty()) {
    return refuse("there is a tensor \"", entries.begin()->first,
                  "\", which the model does not have");
  }
  return PeftFolder(contents);
}

const LoraOptions& PeftFolder::lora() const { return contents_->lora; }

absl::Status PeftFolder::Read(const ModelParameter& parameter,
                              const kernels::Tensor& values) const {
  const std::string& name = parameter.name;
  const auto found = contents_->matrices.find(name);
  if (found == contents_->matrices.end()) {
    return base::DataError(absl::StrCat(contents_->path, " has no values of \"", name, "\""),
                           absl::StatusCode::kNotFound);
  }
  const auto& [piece, entry] = found->second;
  STAGECOACH_CHECK(piece.rows() * piece.columns() == values.elements(), "another number of values");
  return base::Annotate(ReadPiece(contents_->file, entry, piece, values, piece.columns()),
                        contents_->path);
}

absl::StatusOr<std::string> PeftFolder::Fingerprint() const {
  base::Hasher hasher;
  std::vector<float> values;
  for (const auto& [name, matrix] : contents_->matrices) {
    const kernels::Shape shape = {matrix.piece.rows(), matrix.piece.columns()};
    values.resize(static_cast<size_t>(shape.elements()));
    RETURN_IF_ERROR(Read({.name = name}, kernels::Float32(values.data(), shape)));
    hasher.Update(absl::StrCat(name, " "));
    hasher.Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                                      values.size() * sizeof(float)));
  }
  return absl::StrCat("initial adapters: ", hasher.HexDigest(), "\n");
}

absl::Status ExportToPeft(const Checkpoint& checkpoint, const std::string& base_model,
                          const std::string& folder) {
  ASSIGN_OR_RETURN(const auto adapted, AdaptedModelOf(checkpoint));
  const Transformer& model = adapted.first;
  const LoraOptions& lora = adapted.second;
  // This file is written last: a folder without it is that of a failed export.
  const std::string config_path = absl::StrCat(folder, "/", kAdapterConfig);
  if (base::Exists(config_path)) {
    return absl::AlreadyExistsError(
        absl::StrCat(config_path, " is there already: name a new folder"));
  }
  RETURN_IF_ERROR(base::MakeFolders(folder));
  const std::vector<AdapterPlace> places = AdapterPlacesOf(model, lora);
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};
  std::vector<std::string> targets = lora.targets;
  for (const AdapterPlace& place : places) {
    if (!absl::c_linear_search(targets, place.name)) targets.push_back(place.name);
    header.tensors.push_back(
        {.name = place.TensorOf("lora_A"), .shape = kernels::Shape{lora.rank, place.inputs}});
    header.tensors.push_back(
        {.name = place.TensorOf("lora_B"), .shape = kernels::Shape{place.outputs, lora.rank}});
  }
  const std::vector<WholePlace> whole = WholePlacesOf(model, lora);
  std::vector<std::string> modules;
  for (const WholePlace& place : whole) {
    if (place.piece.first_row > 0) continue;  // the rest of the tensor before it
    header.tensors.push_back({.name = place.tensor, .shape = kernels::Shape(place.piece.shape)});
    if (place.is_copy) continue;
    const std::string module = place.tensor.substr(0, place.tensor.rfind('.'));
    std::string name = module.substr(module.rfind('.') + 1);
    if (!absl::c_linear_search(modules, name)) modules.push_back(std::move(name));
  }
  ParameterReader reader(checkpoint);
  RETURN_IF_ERROR(base::WriteFileAtomically(
      absl::StrCat(folder, "/", kTensors), [&](const base::AppendFunction& append) -> absl::Status {
        RETURN_IF_ERROR(append(LayOutSafetensors(header)));
        for (const AdapterPlace& place : places) {
          for (const absl::string_view matrix : kMatrices) {
            ASSIGN_OR_RETURN(const absl::Span<const float> values,
                             reader.Read(place.ParameterOf(matrix)));
            const bool is_a = matrix == kMatrices[0];
            const auto columns = static_cast<size_t>(is_a ? lora.rank : place.outputs);
            const size_t rows = values.size() / columns;
            std::vector<float> transposed(values.size());
            for (size_t o = 0; o < columns; ++o) {
              const bool is_ordered = !is_a && !place.order.empty();
              const size_t column = is_ordered ? static_cast<size_t>(place.order[o]) : o;
              for (size_t r = 0; r < rows; ++r) {
                transposed[o * rows + r] = values[r * columns + column];
              }
            }
            RETURN_IF_ERROR(append({reinterpret_cast<const char*>(transposed.data()),
                                    transposed.size() * sizeof(float)}));
          }
        }
        for (const WholePlace& place : whole) {
          ASSIGN_OR_RETURN(const absl::Span<const float> ours, reader.Read(place.parameter));
          std::vector<float> values(ours.begin(), ours.end());
          for (float& value : values) value -= place.piece.offset;
          RETURN_IF_ERROR(append(
              {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}));
        }
        return absl::OkStatus();
      }));
  nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                   {"task_type", "CAUSAL_LM"},
                                   {"base_model_name_or_path", base_model},
                                   {"inference_mode", true},
                                   {"r", lora.rank},
                                   {"lora_alpha", lora.alpha},
                                   {"lora_dropout", lora.dropout},
                                   {"use_rslora", lora.is_rank_stabilized},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", model.family == TransformerFamily::kGpt2},
                                   {"target_modules", targets}};
  if (!modules.empty()) config["modules_to_save"] = modules;
  if (model.is_tied && lora.trains("embedding")) config["ensure_weight_tying"] = true;
  return base::WriteFileAtomically(config_path, config.dump(2) + "\n");
}

}  // namespace stagecoach::engine
