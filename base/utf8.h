#ifndef STAGECOACH_BASE_UTF8_H_
#define STAGECOACH_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// What is at the front of bytes that may be UTF-8 (RFC 3629, section 4).
struct Utf8Front {
  enum class Kind : uint8_t {
    kCharacter,
    kCut,     // all that there is begins a character, and is not all of it
    kInvalid  // as many bytes as a character may begin with, and one at least
  };
  Kind kind;
  size_t bytes;
};

// Pre-condition: `text` is not empty.
Utf8Front FrontOf(absl::string_view text);

// How many bytes of `text` are whole characters, up to the first that is not the beginning of one.
size_t Utf8Prefix(absl::string_view text);

// DataLoss "the byte 0xff at offset 3 is not UTF-8, expected text".
absl::Status NotUtf8(absl::string_view text, size_t offset);
// The same for the first such byte of `text`; OK if there is none.
absl::Status CheckUtf8(absl::string_view text);

// Text that may quote names and files, as a terminal may be given it: control characters other than
// newlines, and bytes that are not UTF-8, are written as \x1b.
std::string EscapeControls(absl::string_view text);

// Columns of a text, one code point being one column wide.
size_t Width(absl::string_view text);

// The first `columns` columns of `text`, and the rest of it.
std::pair<absl::string_view, absl::string_view> SplitAt(absl::string_view text, size_t columns);

// At most that many columns of `text`, at least 1. A longer text keeps its start and its end, where
// names of devices have their number: "nvidia…hbm3.12".
std::string ElidedInMiddle(absl::string_view text, size_t columns);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_UTF8_H_
