#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "base/text/nearest.h"

namespace stagecoach::base {
namespace {

using nlohmann::json;

absl::Status ErrorAt(absl::string_view path, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
}

// Describes a value for a message: numbers and booleans as written, otherwise the kind.
std::string Describe(const json& value) {
  if (value.is_string()) return "a string";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return value.dump();
}

absl::Status WrongType(absl::string_view path, absl::string_view expected, const json& value) {
  return ErrorAt(path, absl::StrCat("expected ", expected, ", found ", Describe(value)));
}

// Returns "at least 1", "at most 8" or "from 1 to 8", depending on which bounds matter.
template <typename Range>
std::string Describe(const Range& range) {
  const Range unlimited;
  const std::string min = json(range.min).dump();
  const std::string max = json(range.max).dump();
  if (range.max == unlimited.max) return absl::StrCat("at least ", min);
  if (range.min == unlimited.min) return absl::StrCat("at most ", max);
  return absl::StrCat("from ", min, " to ", max);
}

template <typename Range>
absl::Status OutOfRange(absl::string_view path, const Range& range, const json& value) {
  return ErrorAt(path, absl::StrCat("must be ", Describe(range), ", found ", Describe(value)));
}

absl::StatusOr<bool> ToBool(const json& value, absl::string_view path) {
  if (!value.is_boolean()) return WrongType(path, "true or false", value);
  return value.get<bool>();
}

absl::StatusOr<int64_t> ToInt64(const json& value, absl::string_view path, Int64Range range) {
  if (!value.is_number_integer()) return WrongType(path, "an integer of 64 bits", value);
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= kMax;
  if (!fits) return WrongType(path, "an integer of 64 bits", value);
  const int64_t number = value.get<int64_t>();
  if (number < range.min || number > range.max) return OutOfRange(path, range, value);
  return number;
}

absl::StatusOr<double> ToDouble(const json& value, absl::string_view path, DoubleRange range) {
  if (!value.is_number()) return WrongType(path, "a number", value);
  const double number = value.get<double>();
  if (!std::isfinite(number)) return ErrorAt(path, "expected a finite number");
  if (number < range.min || number > range.max) return OutOfRange(path, range, value);
  return number;
}

absl::StatusOr<std::string> ToString(const json& value, absl::string_view path) {
  if (!value.is_string()) return WrongType(path, "a string", value);
  return value.get<std::string>();
}

}  // namespace

ObjectReader::ObjectReader(const json* object, std::string path)
    : object_(object), path_(std::move(path)) {}

absl::StatusOr<ObjectReader> ObjectReader::Create(const json& value, std::string path) {
  if (!value.is_object()) return WrongType(path, "an object", value);
  return ObjectReader(&value, std::move(path));
}

const json* ObjectReader::Find(absl::string_view key) {
  const auto asked = asked_.emplace(key).first;
  const auto found = object_->find(*asked);
  return found == object_->end() ? nullptr : &*found;
}

// A required key that is missing may be present but misspelled.
std::string ObjectReader::HintFor(absl::string_view key) const {
  constexpr size_t kMostKeys = 64;  // in an object that a person would look through
  if (object_->size() > kMostKeys) return "";
  std::vector<std::string> others;
  for (const auto& item : object_->items()) {
    if (!asked_.contains(item.key())) others.push_back(item.key());
  }
  const std::string nearest = Nearest(key, others);
  return nearest.empty() ? "" : absl::StrCat("; there is a \"", nearest, "\"");
}

absl::StatusOr<const json*> ObjectReader::Require(absl::string_view key) {
  const json* value = Find(key);
  if (value == nullptr) {
    return ErrorAt(path_, absl::StrCat("the key \"", key, "\" is missing", HintFor(key)));
  }
  return value;
}

std::string ObjectReader::PathOf(absl::string_view key) const {
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-';
  });
  return plain ? absl::StrCat(path_, ".", key)
               : absl::StrCat(path_, "[\"", absl::CHexEscape(key), "\"]");
}

absl::StatusOr<int64_t> ObjectReader::RequiredInt64(absl::string_view key, Int64Range range) {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  return ToInt64(*value, PathOf(key), range);
}

absl::StatusOr<double> ObjectReader::RequiredDouble(absl::string_view key, DoubleRange range) {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  return ToDouble(*value, PathOf(key), range);
}

absl::StatusOr<std::string> ObjectReader::RequiredString(absl::string_view key) {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  return ToString(*value, PathOf(key));
}

absl::StatusOr<ArrayReader> ObjectReader::RequiredArray(absl::string_view key) {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  return ArrayReader::Create(*value, PathOf(key));
}

absl::StatusOr<ObjectReader> ObjectReader::RequiredObject(absl::string_view key) {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  return ObjectReader::Create(*value, PathOf(key));
}

absl::StatusOr<bool> ObjectReader::OptionalBool(absl::string_view key, bool fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  return ToBool(*value, PathOf(key));
}

absl::StatusOr<int64_t> ObjectReader::OptionalInt64(absl::string_view key, int64_t fallback,
                                                    Int64Range range) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  return ToInt64(*value, PathOf(key), range);
}

absl::StatusOr<double> ObjectReader::OptionalDouble(absl::string_view key, double fallback,
                                                    DoubleRange range) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  return ToDouble(*value, PathOf(key), range);
}

absl::StatusOr<std::string> ObjectReader::OptionalString(absl::string_view key,
                                                         absl::string_view fallback) {
  const json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  return ToString(*value, PathOf(key));
}

absl::StatusOr<std::optional<ArrayReader>> ObjectReader::OptionalArray(absl::string_view key) {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return ArrayReader::Create(*value, PathOf(key));
}

absl::StatusOr<std::optional<ObjectReader>> ObjectReader::OptionalObject(absl::string_view key) {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return ObjectReader::Create(*value, PathOf(key));
}

bool ObjectReader::Has(absl::string_view key) { return Find(key) != nullptr; }

std::vector<std::string> ObjectReader::Keys() {
  std::vector<std::string> keys;
  for (const auto& item : object_->items()) keys.push_back(item.key());
  asked_.insert(keys.begin(), keys.end());
  return keys;
}

absl::Status ObjectReader::Finish() const {
  for (const auto& item : object_->items()) {
    if (asked_.contains(item.key())) continue;
    const std::vector<std::string> known(asked_.begin(), asked_.end());
    const std::string nearest = Nearest(item.key(), known);
    const std::string hint = nearest.empty()
                                 ? absl::StrCat("the known keys are: ", absl::StrJoin(known, ", "))
                                 : absl::StrCat("did you mean \"", nearest, "\"?");
    return ErrorAt(path_,
                   absl::StrCat("unknown key \"", absl::CHexEscape(item.key()), "\"; ", hint));
  }
  return absl::OkStatus();
}

absl::Status ObjectReader::Error(absl::string_view key, absl::string_view message) const {
  return ErrorAt(PathOf(key), message);
}

ArrayReader::ArrayReader(const json* array, std::string path)
    : array_(array), path_(std::move(path)) {}

absl::StatusOr<ArrayReader> ArrayReader::Create(const json& value, std::string path) {
  if (!value.is_array()) return WrongType(path, "an array", value);
  return ArrayReader(&value, std::move(path));
}

size_t ArrayReader::size() const { return array_->size(); }

const json& ArrayReader::Element(size_t index) const {
  STAGECOACH_CHECK(index < size(), absl::StrCat(PathOf(index), " of ", size(), " elements"));
  return (*array_)[index];
}

std::string ArrayReader::PathOf(size_t index) const { return absl::StrCat(path_, "[", index, "]"); }

absl::StatusOr<int64_t> ArrayReader::Int64(size_t index, Int64Range range) const {
  return ToInt64(Element(index), PathOf(index), range);
}

absl::StatusOr<double> ArrayReader::Double(size_t index, DoubleRange range) const {
  return ToDouble(Element(index), PathOf(index), range);
}

absl::StatusOr<std::string> ArrayReader::String(size_t index) const {
  return ToString(Element(index), PathOf(index));
}

absl::StatusOr<ArrayReader> ArrayReader::Array(size_t index) const {
  return ArrayReader::Create(Element(index), PathOf(index));
}

absl::StatusOr<ObjectReader> ArrayReader::Object(size_t index) const {
  return ObjectReader::Create(Element(index), PathOf(index));
}

absl::Status ArrayReader::Error(size_t index, absl::string_view message) const {
  return ErrorAt(PathOf(index), message);
}

}  // namespace stagecoach::base
