#include "base/text/csv_reader.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::base {
namespace {

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

CsvReader::CsvReader(absl::string_view text) : text_(text) {
  if (absl::StartsWith(text, kByteOrderMark)) {
    offset_ = kByteOrderMark.size();
    line_start_ = offset_;
  }
}

absl::StatusOr<bool> CsvReader::Next(std::vector<CsvField>& record) {
  if (AtEnd()) return false;
  size_t fields = 0;
  FieldEnd end = FieldEnd::kComma;
  while (end == FieldEnd::kComma) {
    if (fields == record.size()) record.emplace_back();
    ASSIGN_OR_RETURN(end, ReadField(record[fields]));
    ++fields;
  }
  record.resize(fields);
  return true;
}

absl::Status CsvReader::ErrorAt(TextPosition position, absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(position.line, ":", position.column, ": ", message));
}

absl::StatusOr<CsvReader::FieldEnd> CsvReader::ReadField(CsvField& field) {
  field.text.clear();
  field.position = Here();
  const bool quoted = !AtEnd() && Peek() == '"';
  RETURN_IF_ERROR(quoted ? ReadQuoted(field) : ReadUnquoted(field));
  return ReadSeparator();
}

absl::Status CsvReader::ReadQuoted(CsvField& field) {
  ++offset_;
  while (!AtEnd()) {
    const char c = Peek();
    if (c == '\0') return ErrorAt(Here(), "NUL byte: not a text file");
    if (c == '"') {
      ++offset_;
      if (AtEnd() || Peek() != '"') return absl::OkStatus();
    }
    field.text.push_back(c);
    ++offset_;
    if (c == '\n') {
      ++line_;
      line_start_ = offset_;
    }
  }
  return ErrorAt(field.position, "this quote is never closed");
}

absl::Status CsvReader::ReadUnquoted(CsvField& field) {
  const size_t begin = offset_;
  while (!AtEnd() && Peek() != ',' && Peek() != '\n' && Peek() != '\r') {
    if (Peek() == '\0') return ErrorAt(Here(), "NUL byte: not a text file");
    if (Peek() == '"') {
      return ErrorAt(Here(),
                     "quote inside an unquoted field: quote the whole field and double the quotes "
                     "in it");
    }
    ++offset_;
  }
  field.text.assign(text_.data() + begin, offset_ - begin);
  return absl::OkStatus();
}

absl::StatusOr<CsvReader::FieldEnd> CsvReader::ReadSeparator() {
  if (AtEnd()) return FieldEnd::kRecord;
  if (Peek() == ',') {
    ++offset_;
    return FieldEnd::kComma;
  }
  const absl::string_view rest = text_.substr(offset_);
  const size_t line_end_bytes = absl::StartsWith(rest, "\n")     ? 1
                                : absl::StartsWith(rest, "\r\n") ? 2
                                                                 : 0;
  if (line_end_bytes == 0) {
    return ErrorAt(Here(), Peek() == '\r' ? "carriage return without a line feed"
                                          : "text after a closing quote, expected a comma or the "
                                            "end of the line");
  }
  offset_ += line_end_bytes;
  ++line_;
  line_start_ = offset_;
  return FieldEnd::kRecord;
}

TextPosition CsvReader::Here() const {
  return {line_, static_cast<int64_t>(offset_ - line_start_) + 1};
}

}  // namespace stagecoach::base
