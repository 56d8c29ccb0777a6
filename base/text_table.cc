#include "base/text_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace stagecoach::base {
namespace {

// Code points: the bytes that do not continue one.
size_t Width(absl::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

std::string Padded(absl::string_view cell, size_t width, TextTable::Align align) {
  const std::string padding(width - Width(cell), ' ');
  return align == TextTable::Align::kLeft ? absl::StrCat(cell, padding)
                                          : absl::StrCat(padding, cell);
}

std::string Line(const std::vector<std::string>& cells) {
  std::string line = absl::StrJoin(cells, "  ");
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

}  // namespace

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

void TextTable::AddRow(std::vector<std::string> cells) {
  STAGECOACH_CHECK(cells.size() == columns_.size(),
                   absl::StrCat("a row of ", cells.size(), " cells in a table of ", columns_.size(),
                                " columns"));
  rows_.push_back(std::move(cells));
}

std::string TextTable::ToString() const {
  std::vector<size_t> widths;
  std::vector<std::string> header;
  std::vector<std::string> rule;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = Width(columns_[c].header);
    for (const std::vector<std::string>& row : rows_) width = std::max(width, Width(row[c]));
    widths.push_back(width);
    header.push_back(Padded(columns_[c].header, width, columns_[c].align));
    rule.push_back(std::string(width, '-'));
  }
  std::string table = Line(header) + Line(rule);
  for (const std::vector<std::string>& row : rows_) {
    std::vector<std::string> padded;
    for (size_t c = 0; c < row.size(); ++c) {
      padded.push_back(Padded(row[c], widths[c], columns_[c].align));
    }
    table += Line(padded);
  }
  return table;
}

}  // namespace stagecoach::base
