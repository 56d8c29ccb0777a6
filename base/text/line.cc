#include "base/text/line.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"

namespace stagecoach::base {
namespace {

// Returns the index of the quote that ends the string literal starting at `start`, or the text's
// end.
size_t EndOfString(absl::string_view text, size_t start) {
  size_t i = start + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i, text.size());
}

// Takes a quoted, escaped string off the front of `text`.
std::optional<std::string> TakeQuoted(absl::string_view& text) {
  if (!absl::StartsWith(text, "\"")) return std::nullopt;
  const size_t end = EndOfString(text, 0);
  std::string key;
  if (end == text.size() || !absl::CUnescape(text.substr(1, end - 1), &key)) return std::nullopt;
  text.remove_prefix(end + 1);
  return key;
}

// Takes ".key", "[3]" or "[\"any key\"]" off the front of `text`.
std::optional<PathStep> TakeStep(absl::string_view& text) {
  if (absl::ConsumePrefix(&text, ".")) {
    size_t length = 0;
    while (length < text.size() && (absl::ascii_isalnum(static_cast<unsigned char>(text[length])) ||
                                    text[length] == '_' || text[length] == '-')) {
      ++length;
    }
    const std::string key(text.substr(0, length));
    text.remove_prefix(length);
    return PathStep{.key = key};
  }
  if (!absl::ConsumePrefix(&text, "[")) return std::nullopt;
  PathStep step;
  if (const auto key = TakeQuoted(text)) {
    step.key = *key;
  } else {
    const size_t end = std::min(text.find(']'), text.size());
    size_t index = 0;
    if (!absl::SimpleAtoi(text.substr(0, end), &index)) return std::nullopt;
    step.index = index;
    text.remove_prefix(end);
  }
  if (!absl::ConsumePrefix(&text, "]")) return std::nullopt;
  return step;
}

// An array or object that has been read only partly.
struct OpenContainer {
  bool is_array = false;
  bool is_on_path = false;
  bool at_start = true;  // of an element or key
  bool inside_is_on_path = false;
  size_t elements = 0;
};

// Notes that an element or key starts at `start`, and whether the path leads there.
void StartMember(absl::string_view text, size_t start, const PathStep& step, OpenContainer& open) {
  open.at_start = false;
  const size_t element = open.elements++;
  open.inside_is_on_path = false;
  if (!open.is_on_path) return;
  if (open.is_array) {
    open.inside_is_on_path = step.index == element;
  } else if (!step.index.has_value()) {
    const absl::string_view literal = text.substr(start, EndOfString(text, start) + 1 - start);
    const auto key = nlohmann::json::parse(literal.begin(), literal.end(), nullptr, false);
    open.inside_is_on_path = key.is_string() && key == step.key;
  }
}

std::optional<size_t> OffsetInJson(absl::string_view text, const std::vector<PathStep>& path) {
  std::vector<OpenContainer> open;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (absl::ascii_isspace(static_cast<unsigned char>(c))) continue;
    if (path.empty()) return i;
    if (!open.empty() && open.back().at_start && c != ']' && c != '}') {
      // Nothing deeper than the path lies on it, because the search ends there.
      StartMember(text, i, path[std::min(open.size(), path.size()) - 1], open.back());
      if (open.back().inside_is_on_path && open.size() == path.size()) return i;
    }
    if (c == '"') {
      i = EndOfString(text, i);
    } else if (c == '{' || c == '[') {
      const bool is_on_path = open.empty() || open.back().inside_is_on_path;
      open.push_back({.is_array = c == '[', .is_on_path = is_on_path});
    } else if (c == ',' && !open.empty()) {
      open.back().at_start = true;
    } else if ((c == '}' || c == ']') && !open.empty()) {
      open.pop_back();
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<PathStep>> PathOfMessage(absl::string_view message) {
  if (!absl::ConsumePrefix(&message, "$")) return std::nullopt;
  std::vector<PathStep> path;
  while (!absl::StartsWith(message, ": ")) {
    const std::optional<PathStep> step = TakeStep(message);
    if (!step.has_value()) return std::nullopt;
    path.push_back(*step);
  }
  if (absl::ConsumePrefix(&message, ": unknown key ")) {
    if (const auto key = TakeQuoted(message)) path.push_back({.key = *key});
  }
  return path;
}

absl::Status WithJsonPlace(const absl::Status& status, absl::string_view text) {
  const auto path = PathOfMessage(status.message());
  if (!path.has_value()) return status;
  const std::optional<size_t> offset = OffsetInJson(text, *path);
  return offset.has_value() ? Annotate(status, PlaceIn(text, *offset)) : status;
}

std::string PlaceIn(absl::string_view text, size_t offset) {
  const absl::string_view before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t newline = before.rfind('\n');
  const size_t column = newline == absl::string_view::npos ? offset + 1 : offset - newline;
  return absl::StrCat(line, ":", column);
}

absl::Status InFile(const absl::Status& status, absl::string_view path) {
  const absl::string_view message = status.message();
  const size_t digits = std::min(message.find_first_not_of("0123456789"), message.size());
  const bool has_place = digits > 0 && message.substr(digits, 1) == ":";
  return WithClass(
      ErrorClass::kData,
      WithMessage(status, absl::StrCat(InputName(path), has_place ? ":" : ": ", message)));
}

}  // namespace stagecoach::base
