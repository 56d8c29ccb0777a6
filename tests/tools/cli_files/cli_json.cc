#include "tests/tools/cli_files/cli_json.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace stagecoach::tools {
namespace {

using Json = nlohmann::json;

// Removes the first part of a path, "name", "[index]" or "{names}", and returns it.
std::string TakePart(absl::string_view& path) {
  if (path[0] == '.') path.remove_prefix(1);
  const size_t end = path[0] == '['   ? path.find(']') + 1
                     : path[0] == '{' ? path.find('}') + 1
                                      : path.find_first_of(".[");
  const std::string part(path.substr(0, end));
  path.remove_prefix(part.size());
  return part;
}

absl::StatusOr<Json> ValueAt(const Json& value, absl::string_view path);

absl::StatusOr<Json> ElementsAt(const Json& array, const std::string& part,
                                absl::string_view rest) {
  if (!array.is_array()) return absl::NotFoundError("no array");
  if (part == "[*]") {
    Json values = Json::array();
    for (const Json& element : array) {
      ASSIGN_OR_RETURN(Json value, ValueAt(element, rest));
      values.push_back(std::move(value));
    }
    return values;
  }
  int index = 0;
  if (!absl::SimpleAtoi(part.substr(1, part.size() - 2), &index)) {
    return absl::InvalidArgumentError(absl::StrCat(part, " is no index"));
  }
  if (index < 0) index += static_cast<int>(array.size());
  if (index < 0 || index >= static_cast<int>(array.size())) {
    return absl::NotFoundError(absl::StrCat("no element ", part));
  }
  return ValueAt(array[static_cast<size_t>(index)], rest);
}

absl::StatusOr<Json> MembersAt(const Json& value, const std::string& part, absl::string_view rest) {
  Json values = Json::array();
  for (const absl::string_view name : absl::StrSplit(part.substr(1, part.size() - 2), ',')) {
    ASSIGN_OR_RETURN(Json member, ValueAt(value, absl::StrCat(name, rest)));
    values.push_back(std::move(member));
  }
  return values;
}

absl::StatusOr<Json> ValueAt(const Json& value, absl::string_view path) {
  if (path.empty()) return value;
  absl::string_view rest = path;
  const std::string part = TakePart(rest);
  if (part[0] == '[') return ElementsAt(value, part, rest);
  if (part[0] == '{') return MembersAt(value, part, rest);
  if (value.is_object() && value.contains(part)) return ValueAt(value[part], rest);
  if (part == "size" && value.is_structured()) return Json(value.size());
  if (value.is_array() && !value.empty()) return ValueAt(value.back(), path);
  return absl::NotFoundError(absl::StrCat("no ", part));
}

bool AreEqual(const Json& left, const Json& right) {
  if (!left.is_number_float() && !right.is_number_float()) return left == right;
  if (!left.is_number() || !right.is_number()) return false;
  const double a = left, b = right;
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

bool Holds(const Json& left, const std::string& comparison, const Json& right) {
  if (comparison == "!=") return !Holds(left, "=", right);
  if (left.is_array() && right.is_array()) {
    return absl::c_equal(left, right,
                         [&](const Json& a, const Json& b) { return Holds(a, comparison, b); });
  }
  if (left.is_array()) {
    return !left.empty() &&
           absl::c_all_of(left, [&](const Json& each) { return Holds(each, comparison, right); });
  }
  if (comparison == "=") return AreEqual(left, right);
  if (!left.is_number() || !right.is_number()) return false;
  if (comparison == "<") return left < right;
  if (comparison == "<=") return left <= right;
  if (comparison == ">") return left > right;
  return left >= right;
}

absl::Status CheckOne(const Json& document, absl::string_view assertion) {
  const std::vector<std::string> words =
      absl::StrSplit(assertion, absl::MaxSplits(' ', 2), absl::SkipEmpty());
  if (words.size() == 2 && words[1] == "absent") {
    const absl::StatusOr<Json> value = CliValue(document, words[0]);
    if (absl::IsNotFound(value.status())) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(words[0], " is there"));
  }
  const char* const comparisons[] = {"=", "!=", "<", "<=", ">", ">="};
  if (words.size() != 3 || !absl::c_linear_search(comparisons, words[1])) {
    return absl::InvalidArgumentError("expected: json PATH OPERATOR VALUE");
  }
  ASSIGN_OR_RETURN(const Json left, CliValue(document, words[0]));
  Json right = Json::parse(words[2], nullptr, /*allow_exceptions=*/false);
  if (right.is_discarded()) ASSIGN_OR_RETURN(right, CliValue(document, words[2]));
  if (Holds(left, words[1], right)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(words[0], " is ", left.dump(), ", expected ", words[1], " ", right.dump()));
}

}  // namespace

absl::StatusOr<Json> CliDocument(const std::string& out) {
  Json document = Json::parse(out, nullptr, /*allow_exceptions=*/false);
  if (document.is_object() && !document.contains("event")) return document;
  document = Json::object();
  for (const absl::string_view line : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
    Json value = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) return absl::InvalidArgumentError(absl::StrCat("not JSON: ", line));
    if (!value.is_object() || !value.contains("event")) {
      return absl::InvalidArgumentError(absl::StrCat("no event: ", line));
    }
    document[value["event"].get<std::string>()].push_back(std::move(value));
  }
  return document;
}

absl::StatusOr<Json> CliValue(const Json& document, const std::string& path) {
  absl::StatusOr<Json> value = ValueAt(document, path == "." ? "" : path);
  if (value.ok()) return value;
  return base::WithMessage(value.status(), absl::StrCat(path, ": ", value.status().message()));
}

absl::Status CheckCliJson(const Json& document, const std::string& assertions) {
  for (const absl::string_view assertion : absl::StrSplit(assertions, " and ")) {
    RETURN_IF_ERROR(CheckOne(document, assertion));
  }
  return absl::OkStatus();
}
}  // namespace stagecoach::tools
