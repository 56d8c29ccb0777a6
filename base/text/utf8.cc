#include "base/text/utf8.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace stagecoach::base {
namespace {

// A character's length and the range of its second byte, by its first byte. The range excludes
// overlong forms, surrogates and values above U+10FFFF. Length 0: no character begins so.
struct Utf8Form {
  size_t bytes = 0;
  uint8_t least = 0x80, most = 0xBF;
};

Utf8Form FormOf(uint8_t lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2 || lead > 0xF4) return {0};
  if (lead < 0xE0) return {2};
  if (lead < 0xF0) {
    return {3, static_cast<uint8_t>(lead == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(lead == 0xED ? 0x9F : 0xBF)};
  }
  return {4, static_cast<uint8_t>(lead == 0xF0 ? 0x90 : 0x80),
          static_cast<uint8_t>(lead == 0xF4 ? 0x8F : 0xBF)};
}

bool StartsCodePoint(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

Utf8Front FrontOf(absl::string_view text) {
  using Kind = Utf8Front::Kind;
  const Utf8Form form = FormOf(static_cast<uint8_t>(text.front()));
  if (form.bytes == 0) return {Kind::kInvalid, 1};
  for (size_t i = 1; i < form.bytes; ++i) {
    if (i == text.size()) return {Kind::kCut, i};
    const auto byte = static_cast<uint8_t>(text[i]);
    const bool continues = i == 1 ? byte >= form.least && byte <= form.most : (byte & 0xC0) == 0x80;
    if (!continues) return {Kind::kInvalid, i};
  }
  return {Kind::kCharacter, form.bytes};
}

size_t Utf8Prefix(absl::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t offset = 0;
  while (offset < text.size()) {
    // Checks eight ASCII characters at once.
    if (uint64_t bytes = 0; text.size() - offset >= sizeof(bytes)) {
      std::memcpy(&bytes, text.data() + offset, sizeof(bytes));
      if ((bytes & kHighBits) == 0) {
        offset += sizeof(bytes);
        continue;
      }
    }
    const Utf8Front front = FrontOf(text.substr(offset));
    if (front.kind != Utf8Front::Kind::kCharacter) break;
    offset += front.bytes;
  }
  return offset;
}

absl::Status NotUtf8(absl::string_view text, size_t offset) {
  return absl::DataLossError(
      absl::StrFormat("the byte 0x%02x at offset %d is not UTF-8, expected text",
                      static_cast<uint8_t>(text[offset]), offset));
}

absl::Status CheckUtf8(absl::string_view text) {
  const size_t offset = Utf8Prefix(text);
  return offset == text.size() ? absl::OkStatus() : NotUtf8(text, offset);
}

std::string EscapeControls(absl::string_view text) {
  std::string escaped;
  for (size_t bytes = 0; !text.empty(); text.remove_prefix(bytes)) {
    const Utf8Front front = FrontOf(text);
    bytes = front.kind == Utf8Front::Kind::kCharacter ? front.bytes : 1;
    const absl::string_view character = text.substr(0, bytes);
    // The control characters beyond ASCII are U+0080 to U+009F.
    const bool is_control =
        (bytes == 1 && character[0] != '\n' && !absl::ascii_isprint(character[0])) ||
        (bytes == 2 && character[0] == '\xc2' && character[1] < '\xa0');
    absl::StrAppend(&escaped, is_control ? absl::CHexEscape(character) : character);
  }
  return escaped;
}

size_t Width(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), StartsCodePoint));
}

std::pair<absl::string_view, absl::string_view> SplitAt(absl::string_view text, size_t columns) {
  size_t i = 0;
  for (size_t seen = 0; i < text.size(); ++i) {
    if (StartsCodePoint(text[i]) && seen++ == columns) break;
  }
  return {text.substr(0, i), text.substr(i)};
}

std::string ElidedInMiddle(absl::string_view text, size_t columns) {
  const size_t width = Width(text);
  if (width <= columns) return std::string(text);
  const size_t end = columns / 2;
  return absl::StrCat(SplitAt(text, columns - 1 - end).first, "\u2026",
                      SplitAt(text, width - end).second);
}

}  // namespace stagecoach::base
