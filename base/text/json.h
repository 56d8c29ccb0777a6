#ifndef STAGECOACH_BASE_TEXT_JSON_H_
#define STAGECOACH_BASE_TEXT_JSON_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// Strict reading of configuration: a parser that accepts only what JSON allows, and readers that
// fail on a wrong type, a value out of range or a misspelled key instead of guessing. ParseToml
// (base/text/toml.h) produces the same values, so that the same readers work for both formats.

struct JsonLimits {
  int max_depth = 64;  // nested arrays and objects; a lone scalar has depth 0
  int64_t max_bytes = int64_t{64} << 20;
};

// Parses one RFC 8259 value. Refuses duplicate keys, numbers that overflow double, invalid UTF-8,
// NUL bytes and anything after the value. Errors are InvalidArgument with "line:column" (from 1, in
// bytes), or ResourceExhausted when a limit is exceeded. Safe on hostile input.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, const JsonLimits& limits = {});

// Inclusive bounds.
struct Int64Range {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};
struct DoubleRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};

class ArrayReader;

// Returns whether JSON can hold the text.
bool IsUtf8(absl::string_view text);

// Reads one JSON object key by key, then Finish() fails on keys that were not asked for:
//   ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json, "$"));
//   ASSIGN_OR_RETURN(plan.stages, reader.RequiredInt64("stages", {.min = 1, .max = 4096}));
//   ASSIGN_OR_RETURN(plan.schedule, reader.OptionalString("schedule", "1f1b"));
//   RETURN_IF_ERROR(reader.Finish());
// Errors are InvalidArgument and start with the path of the value, such as "$.stages[2].device". A
// null counts as present, with the wrong type. Integers must be written as integers and fit in
// int64; doubles may be written as integers and must be finite. A missing key's error names the
// nearest one that has not been asked for yet. The reader refers to the object, which must outlive
// it and everything read from it. Thread-compatible.
class ObjectReader {
 public:
  // `path` is where `value` was found; InvalidArgument if it is not an object.
  static absl::StatusOr<ObjectReader> Create(const nlohmann::json& value, std::string path = "$");

  absl::StatusOr<int64_t> RequiredInt64(absl::string_view key, Int64Range range = {});
  absl::StatusOr<double> RequiredDouble(absl::string_view key, DoubleRange range = {});
  absl::StatusOr<std::string> RequiredString(absl::string_view key);
  absl::StatusOr<ArrayReader> RequiredArray(absl::string_view key);
  absl::StatusOr<ObjectReader> RequiredObject(absl::string_view key);

  // Returns `fallback`, or nullopt, if the key is absent. The fallback is not checked against the
  // range.
  absl::StatusOr<bool> OptionalBool(absl::string_view key, bool fallback);
  absl::StatusOr<int64_t> OptionalInt64(absl::string_view key, int64_t fallback,
                                        Int64Range range = {});
  absl::StatusOr<double> OptionalDouble(absl::string_view key, double fallback,
                                        DoubleRange range = {});
  absl::StatusOr<std::string> OptionalString(absl::string_view key, absl::string_view fallback);
  absl::StatusOr<std::optional<ArrayReader>> OptionalArray(absl::string_view key);
  absl::StatusOr<std::optional<ObjectReader>> OptionalObject(absl::string_view key);

  // Returns whether the key is present. Counts as asking for it.
  bool Has(absl::string_view key);

  // Returns every key of the object in alphabetical order, for objects used as maps. Counts as
  // asking for all of them.
  std::vector<std::string> Keys();

  // Returns an error that names the first key that was not asked for, and the nearest one that was.
  absl::Status Finish() const;

  // Returns InvalidArgument "<path>.<key>: <message>", for checks that only the caller can make.
  absl::Status Error(absl::string_view key, absl::string_view message) const;

  const std::string& path() const { return path_; }

 private:
  ObjectReader(const nlohmann::json* object, std::string path);

  // Returns null if the key is absent.
  const nlohmann::json* Find(absl::string_view key);
  absl::StatusOr<const nlohmann::json*> Require(absl::string_view key);
  std::string HintFor(absl::string_view key) const;
  std::string PathOf(absl::string_view key) const;

  const nlohmann::json* object_;
  std::string path_;
  std::set<std::string> asked_;
};

// Reads the elements of one JSON array under the rules of ObjectReader. `index` must be below
// size(). Thread-safe.
class ArrayReader {
 public:
  // `path` is where `value` was found; InvalidArgument if it is not an array.
  static absl::StatusOr<ArrayReader> Create(const nlohmann::json& value, std::string path = "$");

  size_t size() const;

  absl::StatusOr<int64_t> Int64(size_t index, Int64Range range = {}) const;
  absl::StatusOr<double> Double(size_t index, DoubleRange range = {}) const;
  absl::StatusOr<std::string> String(size_t index) const;
  absl::StatusOr<ArrayReader> Array(size_t index) const;
  absl::StatusOr<ObjectReader> Object(size_t index) const;

  // Returns InvalidArgument "<path>[<index>]: <message>", for checks that only the caller can make.
  absl::Status Error(size_t index, absl::string_view message) const;

  const std::string& path() const { return path_; }

 private:
  ArrayReader(const nlohmann::json* array, std::string path);

  const nlohmann::json& Element(size_t index) const;
  std::string PathOf(size_t index) const;

  const nlohmann::json* array_;
  std::string path_;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_JSON_H_
