#ifndef STAGECOACH_BASE_TEXT_UTF8_H_
#define STAGECOACH_BASE_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// The front of bytes that may be UTF-8 (RFC 3629, section 4).
struct Utf8Front {
  enum class Kind : uint8_t {
    kCharacter,
    kCut,     // the bytes end within a character
    kInvalid  // as many bytes as may begin a character, at least one
  };
  Kind kind;
  size_t bytes;
};

// Pre-condition: `text` is not empty.
Utf8Front FrontOf(absl::string_view text);

// Returns how many bytes of `text` are whole characters, up to the first that does not begin one.
size_t Utf8Prefix(absl::string_view text);

// Returns DataLoss "the byte 0xff at offset 3 is not UTF-8, expected text".
absl::Status NotUtf8(absl::string_view text, size_t offset);
// Returns the same error for the first such byte of `text`; OK if there is none.
absl::Status CheckUtf8(absl::string_view text);

// Makes text that may quote names and files safe for a terminal: control characters other than
// newlines, and bytes that are not UTF-8, are written as \x1b.
std::string EscapeControls(absl::string_view text);

// Returns the width of a text, one code point being one column wide.
size_t Width(absl::string_view text);

// Returns the first `columns` columns of `text`, and the rest of it.
std::pair<absl::string_view, absl::string_view> SplitAt(absl::string_view text, size_t columns);

// Returns at most `columns` columns of `text`, at least 1. A longer text keeps its start and its
// end, where names of devices have their number: "nvidia…hbm3.12".
std::string ElidedInMiddle(absl::string_view text, size_t columns);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_UTF8_H_
