#include "engine/data/token_ids.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "engine/data/npy.h"

namespace stagecoach::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "files are mapped as they are");

// llm.c's dev/data/data_common.py.
constexpr int32_t kLlmcMagic = 20240520;
constexpr int32_t kLlmcMagicOfUint32 = 20240801;
constexpr int32_t kLlmcVersion = 1;
constexpr size_t kLlmcHeaderBytes = 256 * sizeof(int32_t);

template <typename T>
T ValueAt(const void* values, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(values) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

// Bytes of the character at the front of `text`, 0 if it is none (RFC 3629, section 4).
size_t Utf8Bytes(absl::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const auto continues = [&](size_t i, uint8_t least = 0x80, uint8_t most = 0xBF) {
    return byte(i) >= least && byte(i) <= most;
  };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  // No longer form than needed, and no surrogates.
  if (lead >= 0xE0 && lead <= 0xEF) {
    return continues(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && continues(2) ? 3
                                                                                                : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    return continues(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && continues(2) &&
                   continues(3)
               ? 4
               : 0;
  }
  return 0;
}

absl::Status CheckUtf8(const std::string& path, absl::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t offset = 0;
  while (offset < text.size()) {
    // Eight ASCII characters at once.
    if (text.size() - offset >= sizeof(uint64_t) &&
        (ValueAt<uint64_t>(text.data() + offset, 0) & kHighBits) == 0) {
      offset += sizeof(uint64_t);
      continue;
    }
    const size_t bytes = Utf8Bytes(text.substr(offset));
    if (bytes == 0) {
      return absl::DataLossError(
          absl::StrFormat("%s: the byte 0x%02x at offset %d is not UTF-8, expected text", path,
                          static_cast<uint8_t>(text[offset]), offset));
    }
    offset += bytes;
  }
  return absl::OkStatus();
}

// The elements of a file that ought to have so many behind its header.
absl::Status CheckElements(const std::string& path, absl::string_view elements, int64_t count,
                           size_t element_bytes) {
  const size_t found = elements.size() / element_bytes;
  if (static_cast<int64_t>(found) == count && elements.size() % element_bytes == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrFormat("%s: %d bytes after the header, expected %d tokens of %d bytes: the file %s",
                      path, elements.size(), count, element_bytes,
                      static_cast<int64_t>(found) < count ? "is truncated" : "has trailing bytes"));
}

// Takes llm.c's header away.
absl::Status SkipLlmcHeader(const std::string& path, absl::string_view& contents) {
  if (contents.size() < sizeof(int32_t)) return absl::OkStatus();
  const auto magic = ValueAt<int32_t>(contents.data(), 0);
  if (magic == kLlmcMagicOfUint32) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: llm.c's file of uint32 tokens (%d), expected one of uint16 (%d)", path,
                        magic, kLlmcMagic));
  }
  if (magic != kLlmcMagic) return absl::OkStatus();
  if (contents.size() < kLlmcHeaderBytes) {
    return absl::DataLossError(
        absl::StrFormat("%s: %d bytes, expected llm.c's header of %d: the file is truncated", path,
                        contents.size(), kLlmcHeaderBytes));
  }
  const auto version = ValueAt<int32_t>(contents.data(), 1);
  const auto count = ValueAt<int32_t>(contents.data(), 2);
  if (version != kLlmcVersion || count < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: version %d and %d tokens in llm.c's header, expected version %d and "
                        "a number of tokens",
                        path, version, count, kLlmcVersion));
  }
  contents.remove_prefix(kLlmcHeaderBytes);
  return CheckElements(path, contents, count, sizeof(uint16_t));
}

}  // namespace

template <typename F>
auto TokenIds::WithElement(F function) const {
  switch (element_) {
    case Element::kUint8:
      return function(uint8_t{});
    case Element::kUint16:
      return function(uint16_t{});
    case Element::kInt32:
      return function(int32_t{});
    case Element::kInt64:
      return function(int64_t{});
  }
  base::PrintAndAbort(__FILE__, __LINE__, "WithElement", "unknown element");
}

absl::StatusOr<TokenIds> TokenIds::OfContents(const std::string& path, TokenFormat format,
                                              std::shared_ptr<const void> memory,
                                              absl::string_view contents) {
  const auto size = static_cast<int64_t>(contents.size());
  if (format == TokenFormat::kText) {
    RETURN_IF_ERROR(CheckUtf8(path, contents));
    return TokenIds(std::move(memory), contents.data(), Element::kUint8, size);
  }
  if (format == TokenFormat::kBin) {
    RETURN_IF_ERROR(SkipLlmcHeader(path, contents));
    if (contents.size() % sizeof(uint16_t) != 0) {
      return absl::DataLossError(absl::StrFormat(
          "%s: %d bytes, expected tokens of 2: the file is truncated", path, contents.size()));
    }
    return TokenIds(std::move(memory), contents.data(), Element::kUint16,
                    static_cast<int64_t>(contents.size() / sizeof(uint16_t)));
  }
  ASSIGN_OR_RETURN(const NpyArray array, ParseNpy(path, contents));
  Element element = Element::kUint16;
  if (array.type == "<i4") {
    element = Element::kInt32;
  } else if (array.type == "<i8") {
    element = Element::kInt64;
  } else if (array.type != "<u2") {
    return absl::InvalidArgumentError(absl::StrCat(path, ": an array of \"", array.type,
                                                   "\", expected integers \"<u2\", \"<i4\" or "
                                                   "\"<i8\""));
  }
  TokenIds ids(std::move(memory), array.elements.data(), element, array.count);
  const size_t bytes = ids.WithElement([](auto value) { return sizeof(value); });
  RETURN_IF_ERROR(CheckElements(path, array.elements, array.count, bytes));
  return ids;
}

absl::StatusOr<TokenIds> TokenIds::Map(const std::string& path, TokenFormat format,
                                       int64_t vocabulary) {
  ASSIGN_OR_RETURN(base::MappedFile opened, base::MappedFile::Open(path));
  const auto file = std::make_shared<const base::MappedFile>(std::move(opened));
  ASSIGN_OR_RETURN(TokenIds ids, OfContents(path, format, file, file->contents()));
  RETURN_IF_ERROR(ids.CheckAll(path, vocabulary));
  return ids;
}

absl::StatusOr<TokenIds> TokenIds::Of(std::vector<int32_t> ids, int64_t vocabulary) {
  const auto memory = std::make_shared<const std::vector<int32_t>>(std::move(ids));
  TokenIds tokens(memory, memory->data(), Element::kInt32, std::ssize(*memory));
  RETURN_IF_ERROR(tokens.CheckAll("tokens", vocabulary));
  return tokens;
}

absl::Status TokenIds::CheckAll(const std::string& name, int64_t vocabulary) {
  const int64_t end = vocabulary == 0 ? kMaxVocabulary : vocabulary;
  return WithElement([&](auto element) -> absl::Status {
    using T = decltype(element);
    // Without a branch for each, since a file may have billions.
    T least = 0;
    T most = 0;
    for (int64_t i = 0; i < size_; ++i) {
      least = std::min(least, ValueAt<T>(ids_, i));
      most = std::max(most, ValueAt<T>(ids_, i));
    }
    if (size_ > 0) largest_ = static_cast<int64_t>(most);
    if (least >= 0 && static_cast<int64_t>(most) < end) return absl::OkStatus();
    int64_t i = 0;
    const auto value = [&] { return static_cast<int64_t>(ValueAt<T>(ids_, i)); };
    while (value() >= 0 && value() < end) ++i;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: token %d is %d, expected 0 to %d%s", name, i, value(), end - 1,
                        vocabulary == 0 ? "" : absl::StrCat(", of a vocabulary of ", vocabulary)));
  });
}

void TokenIds::Copy(int64_t first, absl::Span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  STAGECOACH_CHECK(first >= 0 && first <= size_ && count <= size_ - first,
                   absl::StrCat(count, " tokens from ", first, " on, of ", size_));
  WithElement([&](auto element) {
    for (int64_t i = 0; i < count; ++i) {
      out[static_cast<size_t>(i)] =
          static_cast<int32_t>(ValueAt<decltype(element)>(ids_, first + i));
    }
  });
}

TokenIds TokenIds::Part(int64_t first, int64_t count) const {
  STAGECOACH_CHECK(first >= 0 && first <= size_ && count >= 0 && count <= size_ - first,
                   absl::StrCat(count, " tokens from ", first, " on, of ", size_));
  TokenIds part = *this;
  part.ids_ = static_cast<const char*>(ids_) +
              first * WithElement([](auto value) { return static_cast<int64_t>(sizeof(value)); });
  part.size_ = count;
  return part;
}

}  // namespace stagecoach::engine
