#include "engine/models/families/family.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using kernels::Activation;

// The first name of each is the one that is written.
constexpr std::pair<const char*, Activation> kActivations[] = {
    {"relu", Activation::kRelu},
    {"gelu", Activation::kGeluExact},
    {"gelu_new", Activation::kGelu},
    {"gelu_fast", Activation::kGelu},
    {"gelu_pytorch_tanh", Activation::kGelu}};

}  // namespace

absl::StatusOr<Activation> ReadActivation(base::ObjectReader& reader, const char* key,
                                          Activation otherwise) {
  ASSIGN_OR_RETURN(const std::string name,
                   reader.OptionalString(key, NameInTransformers(otherwise)));
  std::vector<std::string> known;
  for (const auto& [known_name, activation] : kActivations) {
    if (name == known_name) return activation;
    known.push_back(absl::StrCat("\"", known_name, "\""));
  }
  return reader.Error(
      key, absl::StrCat("is \"", name, "\", expected one of ", absl::StrJoin(known, ", ")));
}

const char* NameInTransformers(Activation activation) {
  return std::find_if(std::begin(kActivations), std::end(kActivations),
                      [&](const auto& known) { return known.second == activation; })
      ->first;
}

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

void ParameterNames::AddGain(absl::string_view name, absl::string_view tensor, int64_t numbers) {
  Add(name, {{.tensor = std::string(tensor), .shape = {numbers}, .offset = gain_offset_}});
}

void ParameterNames::AddNorm(absl::string_view inside, absl::string_view tensor, bool has_offset) {
  AddGain(absl::StrCat(inside, "gamma"), absl::StrCat(tensor, ".weight"), width_);
  if (has_offset) AddPlain(absl::StrCat(inside, "beta"), absl::StrCat(tensor, ".bias"), {width_});
}

void ParameterNames::AddConv1D(int inside, absl::string_view tensor, int64_t inputs,
                               int64_t outputs) {
  AddPlain(absl::StrCat(inside, ".weight"), absl::StrCat(tensor, ".weight"), {inputs, outputs});
  AddPlain(absl::StrCat(inside, ".bias"), absl::StrCat(tensor, ".bias"), {outputs});
}

void ParameterNames::AddLinears(const absl::AlphaNum& inside, int64_t inputs,
                                const Linears& linears, bool has_bias,
                                const std::vector<int64_t>& order) {
  std::vector<HuggingFacePiece> weights, biases;
  for (const auto& [tensor, outputs] : linears) {
    weights.push_back({.tensor = absl::StrCat(tensor, ".weight"),
                       .shape = {outputs, inputs},
                       .is_transposed = true,
                       .order = order});
    biases.push_back({.tensor = absl::StrCat(tensor, ".bias"), .shape = {outputs}, .order = order});
  }
  Add(absl::StrCat(inside, ".weight"), std::move(weights));
  if (has_bias) Add(absl::StrCat(inside, ".bias"), std::move(biases));
}

void ParameterNames::AddPositions(const Transformer& model, absl::string_view tensor) {
  const int64_t before = model.position_offset(), later = model.later_positions();
  const std::vector<int64_t> shape = {before + model.context + later, model.width};
  const auto add = [&](const char* name, int64_t first, int64_t rows) {
    if (rows > 0) Add(name, {{std::string(tensor), shape, false, first, rows}});
  };
  add("earlier_positions", 0, before);
  add("positions", before, model.context);
  add("later_positions", before + model.context, later);
}

void ParameterNames::AddHead(const Transformer& model) {
  NextLayer();
  if (model.is_tied) return;
  AddPlain("weight", HuggingFaceHead(model), {model.vocabulary, model.width});
}

}  // namespace stagecoach::engine
