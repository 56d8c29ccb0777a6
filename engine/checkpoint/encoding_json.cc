#include "engine/checkpoint/encoding_json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "engine/data/tokenizer/token_ids.h"

namespace stagecoach::engine {

using base::ArrayReader;
using base::ObjectReader;

namespace {

absl::StatusOr<std::vector<double>> ParseNumbers(ObjectReader& reader, absl::string_view key,
                                                 const base::DoubleRange& range) {
  ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray(key));
  std::vector<double> numbers;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(numbers.emplace_back(), array.Double(i, range));
  }
  return numbers;
}

// Parses names, each of which occurs once; none, if the key is absent.
absl::StatusOr<std::vector<std::string>> ParseNames(ObjectReader& reader, absl::string_view key) {
  std::vector<std::string> names;
  ASSIGN_OR_RETURN(const std::optional<ArrayReader> array, reader.OptionalArray(key));
  if (!array.has_value()) return names;
  std::set<std::string> seen;
  for (size_t i = 0; i < array->size(); ++i) {
    ASSIGN_OR_RETURN(names.emplace_back(), array->String(i));
    if (!seen.insert(names.back()).second) {
      return array->Error(i, absl::StrCat("\"", names.back(), "\" is there twice"));
    }
  }
  return names;
}

// Parses what labels that are numbers are: one, or several with names.
absl::Status ParseLabels(ObjectReader& reader, DataEncoding& encoding) {
  constexpr base::DoubleRange kPositive = {.min = std::numeric_limits<double>::min()};
  ASSIGN_OR_RETURN(encoding.label_names, ParseNames(reader, "names"));
  if (encoding.label_names.empty()) {
    ASSIGN_OR_RETURN(encoding.label_mean.emplace_back(), reader.RequiredDouble("mean", {}));
    ASSIGN_OR_RETURN(encoding.label_stddev.emplace_back(),
                     reader.RequiredDouble("stddev", kPositive));
    return reader.Finish();
  }
  ASSIGN_OR_RETURN(encoding.label_mean, ParseNumbers(reader, "mean", {}));
  ASSIGN_OR_RETURN(encoding.label_stddev, ParseNumbers(reader, "stddev", kPositive));
  const size_t labels = encoding.label_names.size();
  if (encoding.label_mean.size() != labels || encoding.label_stddev.size() != labels) {
    return reader.Error("names", absl::StrCat("has ", labels, " elements, and mean has ",
                                              encoding.label_mean.size(), " and stddev ",
                                              encoding.label_stddev.size()));
  }
  return reader.Finish();
}

}  // namespace

nlohmann::ordered_json ToJson(const DataEncoding& encoding) {
  nlohmann::ordered_json json = {{"mean", encoding.mean}, {"stddev", encoding.stddev}};
  if (!encoding.columns.empty()) json["columns"] = encoding.columns;
  for (size_t i = 0; i < encoding.categories.size(); ++i) {
    if (encoding.categories[i].empty()) continue;
    json["categories"][encoding.columns[i]] = encoding.categories[i];
  }
  if (!encoding.dropped_columns.empty()) json["dropped"] = encoding.dropped_columns;
  if (!encoding.class_names.empty()) json["classes"] = encoding.class_names;
  if (encoding.label_names.empty() && encoding.labels_are_numbers()) {
    json["labels"] = {{"mean", encoding.label_mean.front()},
                      {"stddev", encoding.label_stddev.front()}};
  } else if (encoding.labels_are_numbers()) {
    json["labels"] = {{"names", encoding.label_names},
                      {"mean", encoding.label_mean},
                      {"stddev", encoding.label_stddev}};
  }
  if (encoding.vocabulary != 0) {
    json["tokens"] = {{"vocabulary", encoding.vocabulary}, {"bytes", encoding.tokens_are_bytes}};
    if (encoding.rows_move) json["tokens"]["rows_move"] = true;
    if (!encoding.tokenizer.empty()) json["tokens"]["tokenizer"] = encoding.tokenizer;
  }
  return json;
}

absl::StatusOr<DataEncoding> ParseEncoding(ObjectReader reader) {
  DataEncoding encoding;
  ASSIGN_OR_RETURN(encoding.mean, ParseNumbers(reader, "mean", {}));
  ASSIGN_OR_RETURN(encoding.stddev, ParseNumbers(reader, "stddev", {.min = 0.0}));
  ASSIGN_OR_RETURN(encoding.columns, ParseNames(reader, "columns"));
  ASSIGN_OR_RETURN(std::optional<ObjectReader> categories, reader.OptionalObject("categories"));
  size_t features = encoding.columns.size();
  if (categories.has_value()) {
    for (const std::string& column : encoding.columns) {
      ASSIGN_OR_RETURN(encoding.categories.emplace_back(), ParseNames(*categories, column));
      if (!encoding.categories.back().empty()) features += encoding.categories.back().size() - 1;
    }
    RETURN_IF_ERROR(categories->Finish());
  }
  ASSIGN_OR_RETURN(encoding.dropped_columns, ParseNames(reader, "dropped"));
  ASSIGN_OR_RETURN(encoding.class_names, ParseNames(reader, "classes"));
  ASSIGN_OR_RETURN(std::optional<ObjectReader> labels, reader.OptionalObject("labels"));
  if (labels.has_value()) RETURN_IF_ERROR(ParseLabels(*labels, encoding));
  ASSIGN_OR_RETURN(std::optional<ObjectReader> tokens, reader.OptionalObject("tokens"));
  if (tokens.has_value()) {
    ASSIGN_OR_RETURN(encoding.vocabulary,
                     tokens->RequiredInt64("vocabulary", {.min = 2, .max = kMaxVocabulary}));
    ASSIGN_OR_RETURN(encoding.tokens_are_bytes, tokens->OptionalBool("bytes", false));
    ASSIGN_OR_RETURN(encoding.rows_move, tokens->OptionalBool("rows_move", false));
    ASSIGN_OR_RETURN(encoding.tokenizer, tokens->OptionalString("tokenizer", ""));
    RETURN_IF_ERROR(tokens->Finish());
  }
  RETURN_IF_ERROR(reader.Finish());
  if (encoding.columns.empty()) features = std::min<size_t>(encoding.mean.size(), 1);
  if (encoding.mean.size() == features && encoding.stddev.size() == features) return encoding;
  return reader.Error("mean", absl::StrCat("has ", encoding.mean.size(), " elements, and stddev ",
                                           encoding.stddev.size(), ": expected ", features));
}

}  // namespace stagecoach::engine
