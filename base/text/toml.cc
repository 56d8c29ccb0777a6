#include "base/text/toml.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/text/line.h"

// Compiled in rather than linked: the shared library is built with exceptions.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 64
// toml++ 3.3 asserts, and in optimized Clang builds assumes, that a table header starts like a key,
// which "[=]" does not. Without the assertion and the assumption, its later checks refuse such a
// header.
#undef NDEBUG
#define TOML_ASSERT(condition) static_assert(true)
// It also treats as unreachable that a letter from U+00A1 to U+0499 stands where white space may;
// there, and nowhere else in its character tables, false is the right answer. (toml++ 3.4, which is
// the same in both, calls these two headers .hpp.)
// clang-format off: the order of these lines matters.
#if __has_include(<toml++/impl/forward_declarations.hpp>)
#include <toml++/impl/forward_declarations.hpp>
#else
#include <toml++/impl/forward_declarations.h>
#endif
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE return false
#if __has_include(<toml++/impl/unicode.hpp>)
#include <toml++/impl/unicode.hpp>
#else
#include <toml++/impl/unicode.h>
#endif
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE __builtin_unreachable()
#include <toml++/toml.h>
// clang-format on

namespace stagecoach::base {
namespace {

using nlohmann::json;

std::string Location(const toml::source_position& position) {
  return absl::StrCat(position.line, ":", position.column);
}

absl::Status TooDeep(absl::string_view location, int max_depth) {
  return absl::ResourceExhaustedError(
      absl::StrCat(location, ": nested deeper than the limit of ", max_depth, " levels"));
}

// Returns the position after the string literal that starts at `start`, by the rules for all four
// kinds of strings.
size_t SkipString(absl::string_view text, size_t start) {
  const char quote = text[start];
  size_t i = start;
  const auto consume_quotes = [&](size_t at_most) {
    size_t count = 0;
    while (count < at_most && i < text.size() && text[i] == quote) ++count, ++i;
    return count;
  };
  const size_t opening = consume_quotes(3);
  if (opening == 2) return i;  // an empty string
  while (i < text.size()) {
    if (text[i] == quote) {
      // The last three of up to five quotes end a multi-line string; the others belong to it.
      if (consume_quotes(opening == 1 ? 1 : 5) >= opening) return i;
    } else {
      i += text[i] == '\\' && quote == '"' ? 2 : 1;
    }
  }
  return text.size();
}

// Rejects dotted keys of too many segments before toml++ sees them: it would build a table for each
// segment, without a limit, and overflow the stack when it frees them. Outside strings and comments
// dots occur only in keys and, at most once each, in numbers and times.
absl::Status CheckDottedKeys(absl::string_view text, int max_depth) {
  int dots = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    size_t next = i + 1;
    if (c == '"' || c == '\'') {
      next = SkipString(text, i);
    } else if (c == '#') {
      next = std::min(text.find('\n', i), text.size());
    } else if (c == '.') {
      ++dots;
      if (dots >= max_depth) return TooDeep(PlaceIn(text, i), max_depth);
    } else if (absl::string_view("\n=,[]{}").find(c) != absl::string_view::npos) {
      dots = 0;
    }
    i = std::min(next, text.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<json> Convert(const toml::node& node, int levels_left, int max_depth);

absl::StatusOr<json> ConvertTable(const toml::table& table, int levels_left, int max_depth) {
  json object = json::object();
  for (const auto& [key, value] : table) {
    ASSIGN_OR_RETURN(object[std::string(key.str())], Convert(value, levels_left, max_depth));
  }
  return object;
}

absl::StatusOr<json> ConvertArray(const toml::array& array, int levels_left, int max_depth) {
  json elements = json::array();
  for (const toml::node& value : array) {
    ASSIGN_OR_RETURN(json element, Convert(value, levels_left, max_depth));
    elements.push_back(std::move(element));
  }
  return elements;
}

absl::StatusOr<json> Convert(const toml::node& node, int levels_left, int max_depth) {
  const std::string location = Location(node.source().begin);
  if (node.is_table() || node.is_array()) {
    if (levels_left == 0) return TooDeep(location, max_depth);
    return node.is_table() ? ConvertTable(*node.as_table(), levels_left - 1, max_depth)
                           : ConvertArray(*node.as_array(), levels_left - 1, max_depth);
  }
  if (const auto* value = node.as_string()) return json(value->get());
  if (const auto* value = node.as_boolean()) return json(value->get());
  if (const auto* value = node.as_integer()) return json(value->get());
  if (const auto* value = node.as_floating_point()) {
    if (std::isfinite(value->get())) return json(value->get());
    return absl::InvalidArgumentError(absl::StrCat(location, ": inf and nan are not accepted"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(location, ": dates and times are not accepted; quote it to make it a string"));
}

}  // namespace

absl::StatusOr<json> ParseToml(absl::string_view text, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "TOML text of ", text.size(), " bytes exceeds the limit of ", limits.max_bytes));
  }
  const int max_depth = std::clamp(limits.max_depth, 0, TOML_MAX_NESTED_VALUES);
  RETURN_IF_ERROR(CheckDottedKeys(text, max_depth));
  const toml::parse_result result = toml::parse(std::string_view(text.data(), text.size()));
  if (!result) {
    const toml::parse_error& error = result.error();
    return absl::InvalidArgumentError(
        absl::StrCat(Location(error.source().begin), ": ",
                     // the name of a macro of the library
                     absl::StrReplaceAll(std::string(error.description()),
                                         {{" (TOML_MAX_NESTED_VALUES)", ""}})));
  }
  return Convert(result.table(), max_depth, max_depth);
}

absl::Status WithTomlPlace(const absl::Status& status, absl::string_view text) {
  const auto path = PathOfMessage(status.message());
  if (!path.has_value() || !CheckDottedKeys(text, TOML_MAX_NESTED_VALUES).ok()) return status;
  const toml::parse_result result = toml::parse(std::string_view(text.data(), text.size()));
  if (!result) return status;
  const toml::node* node = &result.table();
  toml::source_position place = {1, 1};
  for (const PathStep& step : *path) {
    if (step.index.has_value()) {
      if (!node->is_array() || *step.index >= node->as_array()->size()) return status;
      node = node->as_array()->get(*step.index);
      place = node->source().begin;
    } else {
      if (!node->is_table()) return status;
      const auto member = node->as_table()->find(std::string_view(step.key));
      if (member == node->as_table()->end()) return status;
      node = &member->second;
      place = member->first.source().begin;
    }
  }
  return Annotate(status, Location(place));
}

}  // namespace stagecoach::base
