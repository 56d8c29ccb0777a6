#include "engine/nn/parsing/lora.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text/nearest.h"
#include "engine/nn/parsing/entry_type.h"

namespace stagecoach::engine {
namespace {

using nlohmann::json;

constexpr const char* kKeys[] = {"rank", "alpha", "dropout", "rslora", "targets", "train"};

// Checks the values, which are of a flag or a model file.
absl::Status CheckLora(const LoraOptions& options) {
  if (options.rank < 1 || options.rank > kMaxLoraRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, ", expected 1 to ", kMaxLoraRank));
  }
  if (!(options.alpha > 0.0 && options.alpha <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("alpha is ", options.alpha, ", expected a number above 0, at most 1e6"));
  }
  if (!(options.dropout >= 0.0 && options.dropout < 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dropout is ", options.dropout, ", expected one in [0, 1)"));
  }
  for (const std::string& target : options.targets) {
    if (target.empty()) return absl::InvalidArgumentError("a target has no name");
  }
  return absl::OkStatus();
}

// Sets the layers that are trained as a whole, in one order. InvalidArgument: an unknown name.
absl::Status SetTrained(const std::vector<std::string>& names, LoraOptions& options) {
  const std::vector<std::string> known(std::begin(kWholeLayers), std::end(kWholeLayers));
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = base::Nearest(name, known);
    return absl::InvalidArgumentError(absl::StrCat(
        "train: \"", name, "\" is not known, expected one of ", absl::StrJoin(known, ", "),
        nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
  }
  for (const std::string& name : known) {
    if (std::find(names.begin(), names.end(), name) != names.end()) options.trained.push_back(name);
  }
  return absl::OkStatus();
}

// A linear layer, or a norm of heads, has attention next.
size_t AttentionAt(const json& list, size_t i) {
  return TypeAt(list, i) == "head_norm" ? i + 1 : i;
}

bool IsRotary(const json& attention) {
  const auto base = attention.find("rotary_base");
  return base != attention.end() && base->is_number() && *base != 0;
}

int64_t CountAt(const json& entry, const char* key, int64_t otherwise) {
  const auto value = entry.find(key);
  return value != entry.end() && value->is_number_integer() ? value->get<int64_t>() : otherwise;
}

bool IsGlu(const std::string& type) { return type == "swiglu" || type == "geglu"; }

bool HasActivation(const json& entry) {
  const auto activation = entry.find("activation");
  return activation != entry.end() && *activation != "none";
}

// Returns the lists of layers that are inside a layer.
std::vector<const json*> ListsInside(const json& entry) {
  std::vector<const json*> lists;
  if (!entry.is_object()) return lists;
  for (const char* const key : {"layers", "shortcut"}) {
    if (entry.contains(key)) lists.push_back(&entry[key]);
  }
  if (const auto branches = entry.find("branches"); branches != entry.end()) {
    for (const json& list : *branches) lists.push_back(&list);
  }
  return lists;
}

// Adds the kinds of layers that can be trained as a whole, including those inside others.
void AddWholeLayers(const json& list, std::set<std::string>& kinds) {
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    const absl::string_view kind = WholeLayerOf(TypeAt(list, i));
    if (!kind.empty()) kinds.emplace(kind);
    for (const json* const inside : ListsInside(list[i])) AddWholeLayers(*inside, kinds);
  }
}

}  // namespace

float LoraOptions::scale() const {
  const auto of = static_cast<double>(rank);
  return static_cast<float>(alpha / (is_rank_stabilized ? std::sqrt(of) : of));
}

bool LoraOptions::adapts(absl::string_view name) const {
  return targets.empty() || std::find(targets.begin(), targets.end(), name) != targets.end();
}

bool LoraOptions::trains(absl::string_view kind) const {
  return std::find(trained.begin(), trained.end(), kind) != trained.end();
}

absl::string_view WholeLayerOf(absl::string_view type) {
  if (type == "embedding") return kWholeLayers[0];
  if (type == "head") return kWholeLayers[1];
  const bool is_norm = type == "layer_norm" || type == "rms_norm" || type == "head_norm";
  return is_norm ? kWholeLayers[2] : "";
}

absl::StatusOr<LoraOptions> ParseLora(absl::string_view text) {
  LoraOptions options;
  bool has_rank = false, has_alpha = false;
  for (const absl::string_view option : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(option, absl::MaxSplits('=', 1));
    const auto& [key, value] = parts;
    const auto wrong = [&](const char* expected) {
      return absl::InvalidArgumentError(absl::StrCat(option, ": expected ", expected));
    };
    if (key == "rank") {
      has_rank = true;
      if (!absl::SimpleAtoi(value, &options.rank)) return wrong("a number");
    } else if (key == "alpha") {
      has_alpha = true;
      if (!absl::SimpleAtod(value, &options.alpha)) return wrong("a number");
    } else if (key == "dropout") {
      if (!absl::SimpleAtod(value, &options.dropout)) return wrong("a number in [0, 1)");
    } else if (key == "rslora") {
      if (!absl::SimpleAtob(value, &options.is_rank_stabilized)) return wrong("0 or 1");
    } else if (key == "targets") {
      if (value != "all") options.targets = absl::StrSplit(value, '+');
    } else if (key == "train") {
      options.trained.clear();
      RETURN_IF_ERROR(SetTrained(absl::StrSplit(value, '+'), options));
    } else {
      const std::vector<std::string> known(std::begin(kKeys), std::end(kKeys));
      const std::string nearest = base::Nearest(std::string(key), known);
      return absl::InvalidArgumentError(
          absl::StrCat("\"", key, "\" is not known, expected one of ", absl::StrJoin(known, ", "),
                       nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
    }
  }
  if (!has_rank) return absl::InvalidArgumentError("expected a rank, such as rank=16");
  if (!has_alpha) options.alpha = 2.0 * static_cast<double>(options.rank);
  RETURN_IF_ERROR(CheckLora(options));
  return options;
}

absl::StatusOr<LoraOptions> ReadLora(const json& table, base::ObjectReader reader) {
  LoraOptions options;
  ASSIGN_OR_RETURN(options.rank, reader.RequiredInt64("rank", {.min = 1, .max = kMaxLoraRank}));
  options.alpha = 2.0 * static_cast<double>(options.rank);
  for (const auto& [key, value] :
       {std::pair("alpha", &options.alpha), std::pair("dropout", &options.dropout)}) {
    if (!reader.Has(key)) continue;
    ASSIGN_OR_RETURN(*value, reader.RequiredDouble(key, {.min = 0.0, .max = 1e6}));
  }
  ASSIGN_OR_RETURN(options.is_rank_stabilized, reader.OptionalBool("rslora", false));
  std::vector<std::string> trained;
  for (const auto& [key, names] :
       {std::pair("targets", &options.targets), std::pair("train", &trained)}) {
    if (!reader.Has(key)) continue;
    ASSIGN_OR_RETURN(const base::ArrayReader entries, reader.RequiredArray(key));
    for (size_t i = 0; i < entries.size(); ++i) {
      const json& name = table[key][i];
      if (!name.is_string()) return reader.Error(key, "expected names of layers");
      names->push_back(name);
    }
  }
  RETURN_IF_ERROR(reader.Finish());
  RETURN_IF_ERROR(base::Annotate(SetTrained(trained, options), reader.path()));
  RETURN_IF_ERROR(base::Annotate(CheckLora(options), reader.path()));
  return options;
}

std::string LoraTextOf(const LoraOptions& options) {
  std::string text = absl::StrCat("rank=", options.rank, ",alpha=", json(options.alpha).dump());
  if (options.dropout > 0.0) absl::StrAppend(&text, ",dropout=", json(options.dropout).dump());
  if (options.is_rank_stabilized) absl::StrAppend(&text, ",rslora=1");
  if (!options.targets.empty()) {
    absl::StrAppend(&text, ",targets=", absl::StrJoin(options.targets, "+"));
  }
  if (!options.trained.empty()) {
    absl::StrAppend(&text, ",train=", absl::StrJoin(options.trained, "+"));
  }
  return text;
}

std::string LoraTableOf(const LoraOptions& options) {
  std::string table =
      absl::StrCat("[lora]\nrank = ", options.rank, "\nalpha = ", json(options.alpha).dump(), "\n");
  if (options.dropout > 0.0) {
    absl::StrAppend(&table, "dropout = ", json(options.dropout).dump(), "\n");
  }
  if (options.is_rank_stabilized) absl::StrAppend(&table, "rslora = true\n");
  if (!options.targets.empty()) {
    absl::StrAppend(&table, "targets = ", json(options.targets).dump(), "\n");
  }
  if (!options.trained.empty()) {
    absl::StrAppend(&table, "train = ", json(options.trained).dump(), "\n");
  }
  return table;
}

absl::Status CheckParts(base::ObjectReader& reader, int64_t outputs) {
  ASSIGN_OR_RETURN(const auto parts, reader.OptionalArray("parts"));
  if (!parts.has_value()) return absl::OkStatus();
  for (size_t i = 0; i < parts->size(); ++i) RETURN_IF_ERROR(parts->String(i).status());
  const auto count = static_cast<int64_t>(parts->size());
  if (count > 0 && outputs % count == 0) return absl::OkStatus();
  return reader.Error(
      "parts", absl::StrCat("has ", count, " names, which do not divide ", outputs, " outputs"));
}

std::vector<AdaptedOutputs> AdaptedOutputsOf(const json& list, size_t i, int64_t outputs) {
  if (const auto names = list[i].find("parts"); names != list[i].end() && names->is_array()) {
    std::vector<AdaptedOutputs> parts;
    const int64_t share = outputs / std::max<int64_t>(std::ssize(*names), 1);
    for (const json& name : *names) {
      if (!name.is_string()) continue;
      parts.push_back({name, std::ssize(parts) * share, share});
    }
    return parts;
  }
  const auto whole = [outputs](const char* name) {
    return std::vector<AdaptedOutputs>{{name, 0, outputs}};
  };
  const size_t after = AttentionAt(list, i + 1);
  if (TypeAt(list, after) == "attention") {
    if (!IsRotary(list[after])) return whole("c_attn");
    const int64_t heads = CountAt(list[after], "heads", 1);
    const int64_t kv_heads = CountAt(list[after], "kv_heads", heads);
    const int64_t head_size = outputs / std::max<int64_t>(heads + 2 * kv_heads, 1);
    const int64_t of_queries = heads * head_size, of_keys = kv_heads * head_size;
    return {{"q_proj", 0, of_queries},
            {"k_proj", of_queries, of_keys},
            {"v_proj", of_queries + of_keys, of_keys}};
  }
  if (i > 0 && TypeAt(list, i - 1) == "attention") {
    return whole(IsRotary(list[i - 1]) ? "o_proj" : "c_proj");
  }
  if (IsGlu(TypeAt(list, i + 1))) {
    return {{"gate_proj", 0, outputs / 2}, {"up_proj", outputs / 2, outputs - outputs / 2}};
  }
  if (i > 0 && IsGlu(TypeAt(list, i - 1))) return whole("down_proj");
  if (HasActivation(list[i]) && TypeAt(list, i + 1) == "linear") return whole("c_fc");
  if (i > 0 && TypeAt(list, i - 1) == "linear" && HasActivation(list[i - 1])) {
    return whole("c_proj");
  }
  return whole("linear");
}

std::set<std::string> LinearLayersIn(const json& list) {
  std::set<std::string> names;
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    if (!list[i].is_object()) continue;
    if (TypeAt(list, i) == "linear") {
      for (AdaptedOutputs& part : AdaptedOutputsOf(list, i, 1)) names.insert(std::move(part.name));
    }
    for (const json* const inside : ListsInside(list[i])) names.merge(LinearLayersIn(*inside));
  }
  return names;
}

absl::Status CheckLoraLayers(const LoraOptions& options, const json& list) {
  const std::set<std::string> names = LinearLayersIn(list);
  if (names.empty()) {
    return absl::InvalidArgumentError("the model has no linear layer to adapt");
  }
  for (const std::string& target : options.targets) {
    if (names.contains(target)) continue;
    const std::string nearest =
        base::Nearest(target, std::vector<std::string>(names.begin(), names.end()));
    return absl::InvalidArgumentError(absl::StrCat(
        "the model has no linear layer \"", target, "\"; it has ", absl::StrJoin(names, ", "),
        nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
  }
  std::set<std::string> kinds;
  AddWholeLayers(list, kinds);
  for (const std::string& kind : options.trained) {
    if (kinds.contains(kind)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("train: the model has no layer that is \"", kind, "\"",
                     kinds.empty() ? "" : absl::StrCat("; it has ", absl::StrJoin(kinds, ", "))));
  }
  const json& last = list.back();
  const bool is_tied = last.is_object() && last.value("tied", json()) == true;
  if (is_tied && options.trains("embedding") != options.trains("head")) {
    return absl::InvalidArgumentError(
        "train: the head's weight is the embedding's table: expected embedding and head, or "
        "neither");
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
