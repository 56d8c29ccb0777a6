#include "engine/models/families/family.h"

#include "absl/strings/str_cat.h"
#include "base/error_class.h"

namespace stagecoach::engine {

absl::Status ExpectText(const nlohmann::json& document, base::ObjectReader& reader, const char* key,
                        const std::vector<std::string>& expected) {
  if (!reader.Has(key) || document[key].is_null()) return absl::OkStatus();
  for (const std::string& text : expected) {
    if (document[key] == text) return absl::OkStatus();
  }
  return base::DataError(absl::StrCat("$.", key, ": is ", document[key].dump(), ", expected \"",
                                      expected.front(), "\""));
}

absl::Status ExpectAbsentOr(const nlohmann::json& document, base::ObjectReader& reader,
                            const char* key, const nlohmann::json& expected) {
  if (!reader.Has(key) || document[key].is_null() || document[key] == expected) {
    return absl::OkStatus();
  }
  return base::DataError(absl::StrCat("$.", key, ": is ", document[key].dump(),
                                      ", which there is no layer for here; expected ",
                                      expected.dump()));
}

void ParameterNames::Add(absl::string_view name, std::vector<HuggingFacePiece> pieces) {
  parameters_.push_back({absl::StrCat("layer ", layer_, ": ", name), std::move(pieces)});
}

void ParameterNames::AddPlain(absl::string_view name, absl::string_view tensor,
                              std::vector<int64_t> shape) {
  Add(name, {{std::string(tensor), std::move(shape)}});
}

void ParameterNames::AddNorm(absl::string_view inside, absl::string_view tensor, bool has_offset) {
  AddPlain(absl::StrCat(inside, "gamma"), absl::StrCat(tensor, ".weight"), {width_});
  if (has_offset) AddPlain(absl::StrCat(inside, "beta"), absl::StrCat(tensor, ".bias"), {width_});
}

void ParameterNames::AddConv1D(int inside, absl::string_view tensor, int64_t inputs,
                               int64_t outputs) {
  AddPlain(absl::StrCat(inside, ".weight"), absl::StrCat(tensor, ".weight"), {inputs, outputs});
  AddPlain(absl::StrCat(inside, ".bias"), absl::StrCat(tensor, ".bias"), {outputs});
}

void ParameterNames::AddLinears(int inside, int64_t inputs,
                                const std::vector<std::pair<std::string, int64_t>>& linears,
                                bool has_bias) {
  std::vector<HuggingFacePiece> weights, biases;
  for (const auto& [tensor, outputs] : linears) {
    weights.push_back({absl::StrCat(tensor, ".weight"), {outputs, inputs}, true});
    biases.push_back({absl::StrCat(tensor, ".bias"), {outputs}});
  }
  Add(absl::StrCat(inside, ".weight"), std::move(weights));
  if (has_bias) Add(absl::StrCat(inside, ".bias"), std::move(biases));
}

void ParameterNames::AddHead(const Transformer& model) {
  NextLayer();
  if (!model.is_tied) AddPlain("weight", "lm_head.weight", {model.vocabulary, model.width});
}

}  // namespace stagecoach::engine
