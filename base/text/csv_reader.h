#ifndef STAGECOACH_BASE_TEXT_CSV_READER_H_
#define STAGECOACH_BASE_TEXT_CSV_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// A position in a text file, counted from 1; `column` counts bytes.
struct TextPosition {
  int64_t line = 1;
  int64_t column = 1;
};

struct CsvField {
  std::string text;  // unquoted
  TextPosition position;
};

// Splits comma-separated text into records as RFC 4180 describes. A quoted field may hold commas,
// line ends and doubled quotes. Lines end in LF or CRLF; the last one need not. A UTF-8 byte-order
// mark at the very beginning is skipped. Nothing else is tolerated: a quote inside an unquoted
// field, text after a closing quote, a quote that is never closed, a lone CR and a NUL byte are
// errors. Spaces are part of the field. An empty line is a record of one empty field.
//
// The reader holds a view of the text and must not outlive it. Not thread-safe.
class CsvReader {
 public:
  explicit CsvReader(absl::string_view text);

  // Reads the next record into `record`, reusing its storage. Returns false at the end of the text.
  // Returns InvalidArgument for malformed text; the reader must not be used after that.
  absl::StatusOr<bool> Next(std::vector<CsvField>& record);

  // Returns InvalidArgument with "line:column: message", for errors in the contents of fields.
  static absl::Status ErrorAt(TextPosition position, absl::string_view message);

 private:
  enum class FieldEnd { kComma, kRecord };

  absl::StatusOr<FieldEnd> ReadField(CsvField& field);
  absl::Status ReadQuoted(CsvField& field);
  absl::Status ReadUnquoted(CsvField& field);
  absl::StatusOr<FieldEnd> ReadSeparator();

  bool AtEnd() const { return offset_ == text_.size(); }
  char Peek() const { return text_[offset_]; }
  TextPosition Here() const;

  const absl::string_view text_;
  size_t offset_ = 0;
  size_t line_start_ = 0;  // offset of the first byte of the current line
  int64_t line_ = 1;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_CSV_READER_H_
