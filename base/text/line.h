#ifndef STAGECOACH_BASE_TEXT_LINE_H_
#define STAGECOACH_BASE_TEXT_LINE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// Errors of ObjectReader and ArrayReader (base/text/json.h) start with the path of a value:
// "$.layers[3].forward_ms: must be at least 0". These functions find the value again in the text it
// was read from, and return the same error with its position in front, as ParseJson and ParseToml
// do: "12:5: $.layers[3].forward_ms: must be at least 0".
//
// The position is that of the value's key, or the start of an array element; for an unknown key its
// own, for a missing one that of the object. OK, and errors that do not start with the path of a
// value in the text, are returned unchanged. `text` is what ParseJson or ParseToml accepted.
absl::Status WithJsonPlace(const absl::Status& status, absl::string_view text);
absl::Status WithTomlPlace(const absl::Status& status, absl::string_view text);  // in toml.cc

// Returns "line:column" of a byte of the text, both from 1.
std::string PlaceIn(absl::string_view text, size_t offset);

// Returns the same error, with class kData, for the text of a file: its path comes first. A
// position that the message begins with follows the path as in compilers' messages: "12: no"
// becomes "a/b.toml:12: no", and "12:3: no" becomes "a/b.toml:12:3: no". The path is written as
// InputName (base/system/file.h) does. OK stays OK.
absl::Status InFile(const absl::Status& status, absl::string_view path);

// One step from a value to one inside it: an element of an array, or else a member of an object.
struct PathStep {
  std::optional<size_t> index;
  std::string key;
};

// Returns the path, from the root of its document, that such a message is about; nullopt if it has
// none.
std::optional<std::vector<PathStep>> PathOfMessage(absl::string_view message);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_LINE_H_
