#ifndef STAGECOACH_BASE_LINE_H_
#define STAGECOACH_BASE_LINE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// Errors of ObjectReader and ArrayReader (base/json.h) start with the path of a value:
// "$.layers[3].forward_ms: must be at least 0". These find the value again in the text that it was
// read from, and return the same error with its place in front, as ParseJson and ParseToml do:
// "12:5: $.layers[3].forward_ms: must be at least 0".
//
// That is the place of the value's key, or where an element of an array starts; of an unknown key
// its own, of a missing one that of the object. OK, and an error that does not start with the path
// of a value in the text, come back as they are. `text`: what ParseJson or ParseToml accepted.
absl::Status WithJsonPlace(const absl::Status& status, absl::string_view text);
absl::Status WithTomlPlace(const absl::Status& status, absl::string_view text);  // in toml.cc

// "line:column" of a byte of the text, both from 1.
std::string PlaceIn(absl::string_view text, size_t offset);

// The same error, of the text of a file, with its path in front. A place that the message begins
// with follows the path as in the messages of compilers: "12: no" becomes "a/b.toml:12: no",
// and "12:3: no" becomes "a/b.toml:12:3: no". The path is that of InputName (base/file.h). OK
// stays OK.
absl::Status InFile(const absl::Status& status, absl::string_view path);

// One step from a value to one inside it: an element of an array, or else a member of an object.
struct PathStep {
  std::optional<size_t> index;
  std::string key;
};

// The path that such a message is about, from the root of its document; nullopt if it has none.
std::optional<std::vector<PathStep>> PathOfMessage(absl::string_view message);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_LINE_H_
