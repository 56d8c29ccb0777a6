#include "engine/data/tokenizer/token_ids.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/mapped_file.h"
#include "base/text/utf8.h"
#include "engine/data/file_name.h"
#include "engine/data/npy.h"

namespace stagecoach::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "files are mapped as they are");

template <typename T>
T ValueAt(const void* values, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(values) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

// Removes llm.c's header, if there is one, and returns the bytes per token.
absl::StatusOr<size_t> SkipLlmcHeader(const std::string& path, absl::string_view& contents) {
  const auto number = [&](int64_t index) { return ValueAt<int32_t>(contents.data(), index); };
  const LlmcForm* form = nullptr;
  for (const LlmcForm& known : kLlmcForms) {
    if (contents.size() >= sizeof(int32_t) && number(0) == known.magic) form = &known;
  }
  if (form == nullptr) return sizeof(uint16_t);
  if (contents.size() < kLlmcHeaderBytes) {
    return absl::DataLossError(
        absl::StrFormat("%s: %d bytes, expected llm.c's header of %d: the file is truncated", path,
                        contents.size(), kLlmcHeaderBytes));
  }
  if (number(1) != form->version || number(2) < 0) {
    return base::DataError(
        absl::StrFormat("%s: version %d and %d tokens in llm.c's header, expected version %d and "
                        "a number of tokens",
                        path, number(1), number(2), form->version));
  }
  const int64_t count = number(2);
  contents.remove_prefix(kLlmcHeaderBytes);
  RETURN_IF_ERROR(CheckElements(path, contents, count, form->token_bytes));
  return form->token_bytes;
}

// Checks a file without a header. Read as 16-bit ids, wider ids have their upper halves, which are
// small, at every second place. 16-bit ids do not look so by chance, if there are many.
absl::Status CheckAre16Bits(const std::string& path, absl::string_view contents) {
  constexpr size_t kFew = 256, kMany = size_t{1} << 20;
  constexpr int kRatio = 16;  // at least, for ids below 2^20 and for those up to kMaxVocabulary
  const size_t count = std::min(contents.size() / sizeof(uint16_t), kMany);
  if (count < kFew || contents.size() % sizeof(uint32_t) != 0) return absl::OkStatus();
  int largest[2] = {0, 0};
  for (size_t i = 0; i < count; ++i) {
    const uint16_t id = ValueAt<uint16_t>(contents.data(), static_cast<int64_t>(i));
    largest[i % 2] = std::max<int>(largest[i % 2], id);
  }
  if (largest[0] == 0 || largest[0] < kRatio * largest[1]) return absl::OkStatus();
  return base::DataError(absl::StrFormat(
      "%s: every second id of 16 bits is at most %d, and the others are up to %d, as if ids had 32 "
      "bits, which a .bin file without a header has not; a .npy file says what it has: "
      "numpy.save(\"ids.npy\", numpy.fromfile(\"ids.bin\", \"<u4\")), or \"<u2\" if they have 16",
      path, largest[1], largest[0]));
}

}  // namespace

template <typename F>
auto TokenIds::Piece::WithElement(F function) const {
  switch (element) {
    case Element::kUint8:
      return function(uint8_t{});
    case Element::kUint16:
      return function(uint16_t{});
    case Element::kUint32:
      return function(uint32_t{});
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
    RETURN_IF_ERROR(base::Annotate(base::CheckUtf8(contents), path));
    return TokenIds(std::move(memory), contents.data(), Element::kUint8, size);
  }
  if (format == TokenFormat::kBin) {
    ASSIGN_OR_RETURN(const size_t bytes, SkipLlmcHeader(path, contents));
    if (std::ssize(contents) == size) RETURN_IF_ERROR(CheckAre16Bits(path, contents));
    if (contents.size() % bytes != 0) {
      return absl::DataLossError(absl::StrFormat(
          "%s: %d bytes, expected tokens of 2: the file is truncated", path, contents.size()));
    }
    return TokenIds(std::move(memory), contents.data(),
                    bytes == sizeof(uint16_t) ? Element::kUint16 : Element::kUint32,
                    static_cast<int64_t>(contents.size() / bytes));
  }
  ASSIGN_OR_RETURN(const NpyArray array, ParseNpy(path, contents));
  if (array.shape.size() != 1) {
    return base::DataError(absl::StrCat(path, ": an array of shape ", NpyShape(array.shape),
                                        ", expected one of one dimension"));
  }
  Element element = Element::kUint16;
  if (array.type == "<u4") {
    element = Element::kUint32;
  } else if (array.type == "<i4") {
    element = Element::kInt32;
  } else if (array.type == "<i8") {
    element = Element::kInt64;
  } else if (array.type != "<u2") {
    return base::DataError(absl::StrCat(path, ": an array of \"", array.type,
                                        "\", expected integers \"<u2\", \"<u4\", \"<i4\" "
                                        "or \"<i8\""));
  }
  TokenIds ids(std::move(memory), array.elements.data(), element, array.count);
  const size_t bytes = ids.pieces_.front().WithElement([](auto value) { return sizeof(value); });
  RETURN_IF_ERROR(CheckElements(path, array.elements, array.count, bytes));
  return ids;
}

absl::StatusOr<TokenIds> TokenIds::Map(const std::string& path, TokenFormat format,
                                       int64_t vocabulary) {
  // Ids without a header may begin with any bytes.
  const bool may_be_gzip = format != TokenFormat::kBin || absl::EndsWith(path, ".gz");
  ASSIGN_OR_RETURN(base::MappedFile opened,
                   may_be_gzip ? base::MappedFile::OpenUncompressed(path, kMaxUncompressedBytes)
                               : base::MappedFile::Open(path));
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
  return pieces_.front().WithElement([&](auto element) -> absl::Status {
    using T = decltype(element);
    const void* const ids = pieces_.front().ids;
    // There is no branch per id, since a file may have billions.
    T least = 0;
    T most = 0;
    for (int64_t i = 0; i < size(); ++i) {
      least = std::min(least, ValueAt<T>(ids, i));
      most = std::max(most, ValueAt<T>(ids, i));
    }
    if (size() > 0) largest_ = static_cast<int64_t>(most);
    if (static_cast<int64_t>(least) >= 0 && static_cast<int64_t>(most) < end)
      return absl::OkStatus();
    int64_t i = 0;
    const auto value = [&] { return static_cast<int64_t>(ValueAt<T>(ids, i)); };
    while (value() >= 0 && value() < end) ++i;
    return base::DataError(
        absl::StrFormat("%s: token %d is %d, expected 0 to %d%s", name, i, value(), end - 1,
                        vocabulary == 0 ? "" : absl::StrCat(", of a vocabulary of ", vocabulary)));
  });
}

TokenIds::Piece TokenIds::Piece::From(int64_t first) const {
  Piece rest = *this;
  rest.ids = static_cast<const char*>(ids) +
             first * WithElement([](auto value) { return static_cast<int64_t>(sizeof(value)); });
  return rest;
}

TokenIds TokenIds::Join(std::vector<TokenIds> parts) {
  STAGECOACH_CHECK(!parts.empty(), "no ids to join");
  TokenIds joined;
  int64_t size = 0;
  for (TokenIds& part : parts) {
    for (const int64_t end : part.ends_) joined.ends_.push_back(size + end);
    for (Piece& piece : part.pieces_) joined.pieces_.push_back(std::move(piece));
    size = joined.ends_.back();
    joined.largest_ = std::max(joined.largest_, part.largest_);
  }
  return joined;
}

void TokenIds::Copy(int64_t first, absl::Span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  STAGECOACH_CHECK(first >= 0 && first <= size() && count <= size() - first,
                   absl::StrCat(count, " tokens from ", first, " on, of ", size()));
  auto piece =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
  for (int64_t copied = 0; copied < count; ++piece) {
    const int64_t begin = first + copied - (piece == 0 ? 0 : ends_[piece - 1]);
    const int64_t some = std::min(count - copied, ends_[piece] - (first + copied));
    pieces_[piece].WithElement([&](auto element) {
      for (int64_t i = 0; i < some; ++i) {
        out[static_cast<size_t>(copied + i)] =
            static_cast<int32_t>(ValueAt<decltype(element)>(pieces_[piece].ids, begin + i));
      }
    });
    copied += some;
  }
}

TokenIds TokenIds::Part(int64_t first, int64_t count) const {
  STAGECOACH_CHECK(first >= 0 && first <= size() && count >= 0 && count <= size() - first,
                   absl::StrCat(count, " tokens from ", first, " on, of ", size()));
  TokenIds part;
  part.largest_ = largest_;
  int64_t begin = 0;  // of a piece among all ids
  for (size_t i = 0; i < pieces_.size(); begin = ends_[i], ++i) {
    const int64_t from = std::max(begin, first), to = std::min(ends_[i], first + count);
    // A part without ids has a piece without any.
    if (from >= to && !(part.pieces_.empty() && i + 1 == pieces_.size())) continue;
    part.pieces_.push_back(from < to ? pieces_[i].From(from - begin) : pieces_[i]);
    part.ends_.push_back(from < to ? to - first : 0);
  }
  return part;
}

}  // namespace stagecoach::engine
