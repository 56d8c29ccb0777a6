#include "engine/nn/parsing/parsed_layer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/nearest.h"
#include "engine/nn/last_axis.h"

namespace stagecoach::engine {

absl::StatusOr<int64_t> ParseFileCount(const char* key, const LayerEntry& entry) {
  if (!entry.json.contains(key) || !entry.json[key].is_string()) {
    return entry.reader.RequiredInt64(key, kFileCounts);
  }
  ASSIGN_OR_RETURN(const std::string word, entry.reader.RequiredString(key));
  if (word == "classes") return entry.classes;
  return entry.reader.Error(
      key, absl::StrCat("\"", absl::CHexEscape(word), "\": expected a number or \"classes\""));
}

absl::StatusOr<std::string> ParseName(const char* key, base::ObjectReader& reader) {
  ASSIGN_OR_RETURN(std::string name, reader.RequiredString(key));
  if (name.empty()) return reader.Error(key, "expected the name of a layer, found \"\"");
  return name;
}

absl::StatusOr<float> ParseNormEpsilon(base::ObjectReader& reader) {
  ASSIGN_OR_RETURN(const double epsilon,
                   reader.OptionalDouble("epsilon", 1e-5, {.min = 1e-12, .max = 1.0}));
  return static_cast<float>(epsilon);
}

absl::Status ParseDeviation(const char* key, base::ObjectReader& reader, float& deviation) {
  ASSIGN_OR_RETURN(const double value,
                   reader.OptionalDouble(key, deviation, {.min = 0.0, .max = 1e3}));
  deviation = static_cast<float>(value);
  return absl::OkStatus();
}

absl::StatusOr<size_t> ChooseAmong(absl::Span<const std::string> known, absl::string_view key,
                                   const std::string& name, const base::ObjectReader& reader) {
  const auto found = std::find(known.begin(), known.end(), name);
  if (found != known.end()) return static_cast<size_t>(found - known.begin());
  const std::string nearest = base::Nearest(name, known);
  return reader.Error(
      key, absl::StrCat("\"", absl::CHexEscape(name), "\" is not known, expected one of ",
                        absl::StrJoin(known, ", "),
                        nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
}

Shape WithLastAxis(const Shape& input, int64_t features) {
  return input.rank() == 0 ? Shape{features} : LastAxis{.sample = input}.WithFeatures(features);
}

int64_t LastAxisOf(const Shape& shape) {
  return shape.rank() == 0 ? 1 : shape.dim(shape.rank() - 1);
}

}  // namespace stagecoach::engine
