#include "engine/data/npy.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kNpyMagic = "\x93NUMPY";
constexpr size_t kNpyVersionBytes = 2;

uint8_t NpyByteAt(absl::string_view text, size_t offset) {
  return static_cast<uint8_t>(text[offset]);
}

// Reads the dictionary of a header, in which each key occurs once.
class NpyHeaderReader {
 public:
  NpyHeaderReader(const std::string& name, absl::string_view header) : name_(name), rest_(header) {}

  absl::StatusOr<NpyArray> Read() {
    NpyArray array;
    bool has_order = false;
    if (!Take('{')) return Malformed("a dictionary");
    while (!Take('}')) {
      std::string key;
      if (!TakeQuoted(key) || !Take(':')) return Malformed("a key");
      if (key == "descr" && array.type.empty()) {
        if (!TakeQuoted(array.type) || array.type.empty()) return Malformed("a type as \"descr\"");
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        array.is_fortran = TakeWord("True");
        if (!array.is_fortran && !TakeWord("False")) return Malformed("False or True");
      } else if (key == "shape" && !has_shape_) {
        RETURN_IF_ERROR(TakeShape(array.shape));
      } else {
        return base::DataError(absl::StrCat(name_, ": the key \"", absl::CHexEscape(key),
                                            "\" of the header is not known, or there twice"));
      }
      if (!Take(',') && !absl::StartsWith(rest_, "}")) return Malformed("\",\" or \"}\"");
    }
    if (array.type.empty() || !has_order || !has_shape_) {
      return Malformed("the keys descr, fortran_order and shape");
    }
    if (!absl::ConsumeSuffix(&rest_, "\n") || rest_.find_first_not_of(' ') != rest_.npos) {
      return Malformed("spaces and a line end behind it");
    }
    array.count = CountOf(array.shape);
    return array;
  }

 private:
  absl::Status Malformed(absl::string_view expected) const {
    return base::DataError(absl::StrCat(name_, ": malformed header of an array, expected ",
                                        expected, " at \"", absl::CHexEscape(rest_.substr(0, 20)),
                                        "\""));
  }

  void SkipSpaces() {
    while (absl::ConsumePrefix(&rest_, " ")) {
    }
  }
  // Each of these skips the spaces around what it takes.
  bool TakeWord(absl::string_view word) {
    SkipSpaces();
    if (!absl::ConsumePrefix(&rest_, word)) return false;
    SkipSpaces();
    return true;
  }
  bool Take(char c) { return TakeWord(absl::string_view(&c, 1)); }
  bool TakeQuoted(std::string& text) {
    SkipSpaces();
    if (!absl::StartsWith(rest_, "'") && !absl::StartsWith(rest_, "\"")) return false;
    const size_t end = rest_.find(rest_.front(), 1);
    if (end == rest_.npos) return false;
    text = std::string(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    SkipSpaces();
    return true;
  }

  absl::Status TakeShape(std::vector<int64_t>& dims) {
    has_shape_ = true;
    if (!Take('(')) return Malformed("a tuple as \"shape\"");
    while (!Take(')')) {
      size_t digits = 0;
      while (digits < rest_.size() && absl::ascii_isdigit(NpyByteAt(rest_, digits))) ++digits;
      int64_t dim = 0;
      if (!absl::SimpleAtoi(rest_.substr(0, digits), &dim))
        return Malformed("a number of elements");
      rest_.remove_prefix(digits);
      dims.push_back(dim);
      if (!Take(',') && !absl::StartsWith(rest_, ")")) return Malformed("\",\" or \")\"");
    }
    return absl::OkStatus();
  }

  static int64_t CountOf(const std::vector<int64_t>& dims) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
    int64_t count = 1;
    for (const int64_t dim : dims) count = count > kMost / dim ? kMost : count * dim;
    return count;
  }

  const std::string& name_;
  absl::string_view rest_;
  bool has_shape_ = false;
};

}  // namespace

absl::StatusOr<NpyArray> ParseNpy(const std::string& name, absl::string_view contents) {
  if (!absl::StartsWith(contents, kNpyMagic)) {
    return base::DataError(
        absl::StrCat(name, ": does not start with 93 \"NUMPY\": not a .npy file"));
  }
  const auto truncated = [&](size_t expected) {
    return absl::DataLossError(
        absl::StrFormat("%s: %d bytes, expected a header of %d: the file is truncated", name,
                        contents.size(), expected));
  };
  size_t header_begin = kNpyMagic.size() + kNpyVersionBytes;
  if (contents.size() < header_begin) return truncated(header_begin);
  const int major = NpyByteAt(contents, kNpyMagic.size());
  const int minor = NpyByteAt(contents, kNpyMagic.size() + 1);
  if (major < 1 || major > 3 || minor != 0) {
    return base::DataError(absl::StrFormat(
        "%s: version %d.%d of the .npy format, expected 1.0, 2.0 or 3.0", name, major, minor));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (contents.size() < header_begin + length_bytes) return truncated(header_begin + length_bytes);
  size_t length = 0;
  for (size_t i = length_bytes; i > 0; --i) {
    length = length << 8 | NpyByteAt(contents, header_begin + i - 1);
  }
  header_begin += length_bytes;
  if (contents.size() - header_begin < length) return truncated(header_begin + length);
  ASSIGN_OR_RETURN(NpyArray array,
                   NpyHeaderReader(name, contents.substr(header_begin, length)).Read());
  array.elements = contents.substr(header_begin + length);
  return array;
}

std::string NpyShape(absl::Span<const int64_t> shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}

absl::Status CheckElements(const std::string& name, absl::string_view elements, int64_t count,
                           size_t element_bytes) {
  const size_t found = elements.size() / element_bytes;
  if (static_cast<int64_t>(found) == count && elements.size() % element_bytes == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrFormat(
      "%s: %d bytes after the header, expected %d elements of %d bytes: the file %s", name,
      elements.size(), count, element_bytes,
      static_cast<int64_t>(found) < count ? "is truncated" : "has trailing bytes"));
}

std::string FormatNpyHeader(absl::string_view type, int64_t count) {
  constexpr size_t kBytes = 128;  // its length is a multiple of 64
  std::string dictionary =
      absl::StrCat("{'descr': '", type, "', 'fortran_order': False, 'shape': (", count, ",), }");
  const size_t length = kBytes - kNpyMagic.size() - kNpyVersionBytes - 2;
  dictionary.resize(length - 1, ' ');
  const char rest[] = {1, 0, static_cast<char>(length), 0};
  return absl::StrCat(kNpyMagic, absl::string_view(rest, sizeof(rest)), dictionary, "\n");
}

}  // namespace stagecoach::engine
