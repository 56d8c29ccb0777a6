#include "engine/nn/parsing/tensor_cut.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/parsing/entry_type.h"

namespace stagecoach::engine {
namespace {

using nlohmann::json;

// "" for an entry that is repeated, too.
std::string SingleTypeAt(const json& list, size_t i) {
  const std::string type = TypeAt(list, i);
  return type.empty() || list[i].value("repeat", json(1)) == 1 ? type : "";
}

// Returns how many layers from position i on are cut together; 0: none.
size_t CutsFrom(const json& list, size_t i) {
  if (SingleTypeAt(list, i) != "linear") return 0;
  const std::string next = SingleTypeAt(list, i + 1);
  const bool has_norm = next == "head_norm" && SingleTypeAt(list, i + 2) == "attention";
  const bool has_middle = next == "attention" || next == "swiglu" || next == "geglu";
  const size_t middles = has_norm ? 2 : has_middle ? 1 : 0;
  return SingleTypeAt(list, i + 1 + middles) == "linear" ? middles + 2 : 0;
}

// Divides a number, which is there and positive.
absl::Status Divide(json& entry, const char* key, absl::string_view what, int64_t blocks) {
  const json value = entry.value(key, json());
  if (!value.is_number_integer() || value < 1) {
    return absl::InvalidArgumentError(absl::StrCat(what, " are not a number"));
  }
  const auto count = value.get<int64_t>();
  if (count % blocks != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " ", what, " cannot be cut into ", blocks, " equal blocks"));
  }
  entry[key] = count / blocks;
  return absl::OkStatus();
}

// Divides the heads of a layer between two linear ones, and sets TensorCut::shares.
absl::Status CutHeads(json& layer, int64_t blocks, std::vector<int64_t>& shares) {
  const json heads = layer.value("heads", json());
  if (!layer.contains("kv_heads")) layer["kv_heads"] = heads;
  RETURN_IF_ERROR(Divide(layer, "heads", "heads", blocks));
  RETURN_IF_ERROR(Divide(layer, "kv_heads", "heads of keys and values", blocks));
  const auto own = layer["heads"].get<int64_t>(), shared = layer["kv_heads"].get<int64_t>();
  shares = {own, shared, shared};
  return absl::OkStatus();
}

// Cuts the lists inside a layer, and counts the cuts.
absl::Status CutInside(json& layer, int64_t blocks, int& cuts);

absl::Status CutList(json& list, int64_t blocks, int& cuts) {
  json result = json::array();
  for (size_t i = 0; i < list.size();) {
    const size_t count = CutsFrom(list, i);
    if (count == 0) {
      if (SingleTypeAt(list, i) == "attention") {
        return absl::InvalidArgumentError(
            "attention can be cut into blocks between two linear layers alone");
      }
      RETURN_IF_ERROR(CutInside(list[i], blocks, cuts));
      result.push_back(std::move(list[i]));
      ++i;
      continue;
    }
    json layers = json::array();
    for (size_t j = 0; j < count; ++j) layers.push_back(list[i + j]);
    RETURN_IF_ERROR(CutOf(layers, blocks).status());
    result.push_back({{"type", "tensor_blocks"}, {"blocks", blocks}, {"layers", layers}});
    i += count;
    ++cuts;
  }
  list = std::move(result);
  return absl::OkStatus();
}

absl::Status CutInside(json& layer, int64_t blocks, int& cuts) {
  if (!layer.is_object()) return absl::OkStatus();
  const std::string type = layer.value("type", json()).is_string() ? layer["type"] : "";
  if (type == "residual" && layer.value("layers", json()).is_array()) {
    return CutList(layer["layers"], blocks, cuts);
  }
  if (type == "branches" && layer.value("branches", json()).is_array()) {
    for (json& branch : layer["branches"]) {
      if (branch.is_array()) RETURN_IF_ERROR(CutList(branch, blocks, cuts));
    }
  }
  if (type == "sequence" && layer.value("layers", json()).is_array()) {
    for (json& inner : layer["layers"]) RETURN_IF_ERROR(CutInside(inner, blocks, cuts));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorCut> CutOf(const json& list, int64_t blocks) {
  if (!list.is_array() || list.empty() || CutsFrom(list, 0) != list.size()) {
    return absl::InvalidArgumentError(
        "expected two linear layers to cut into blocks, with attention (after a head_norm or "
        "not), swiglu, geglu or nothing between them");
  }
  TensorCut cut = {.first_block = list, .shares = {1}};
  json& first = cut.first_block.front();
  first.erase("parts");
  const std::string type = SingleTypeAt(list, 1);
  if (type == "swiglu" || type == "geglu") {
    cut.shares = {1, 1};  // the gate, and what it is multiplied with
  } else if (type != "linear") {
    RETURN_IF_ERROR(CutHeads(cut.first_block[list.size() - 2], blocks, cut.shares));
  }
  if (type == "head_norm") {
    std::vector<int64_t> normalized;
    RETURN_IF_ERROR(CutHeads(cut.first_block[1], blocks, normalized));
    if (normalized != cut.shares) {
      return absl::InvalidArgumentError("head_norm has other heads than attention");
    }
  }
  RETURN_IF_ERROR(Divide(first, "outputs", "outputs", blocks));
  cut.first_block.back().erase("parts");
  cut.other_block = cut.first_block;
  cut.other_block.back()["bias"] = false;
  return cut;
}

absl::StatusOr<json> WithTensorBlocks(const json& layers, int64_t blocks) {
  json result = layers;
  int cuts = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    const std::string type = TypeAt(result, i);
    if (type == "embedding" || type == "head") result[i]["blocks"] = blocks;
  }
  for (json& layer : result) RETURN_IF_ERROR(CutInside(layer, blocks, cuts));
  if (cuts > 0) return result;
  return absl::InvalidArgumentError(
      "no layer can be cut into blocks: expected residual ones with two linear layers, and "
      "attention, swiglu, geglu or nothing between them");
}

}  // namespace stagecoach::engine
