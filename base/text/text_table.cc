#include "base/text/text_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/text/utf8.h"

namespace stagecoach::base {
namespace {

std::string Padded(absl::string_view cell, size_t width, TextTable::Align align) {
  const std::string padding(width - Width(cell), ' ');
  return align == TextTable::Align::kLeft ? absl::StrCat(cell, padding)
                                          : absl::StrCat(padding, cell);
}

std::string OnOneLine(absl::string_view cell) {
  return absl::StrReplaceAll(EscapeControls(cell), {{"\n", "\\n"}});
}

std::string Line(const std::vector<std::string>& cells, size_t gap) {
  std::string line = absl::StrJoin(cells, std::string(gap, ' '));
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

}  // namespace

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& column : columns_) column.header = OnOneLine(column.header);
}

void TextTable::AddRow(std::vector<std::string> cells) {
  STAGECOACH_CHECK(cells.size() == columns_.size(),
                   absl::StrCat("a row of ", cells.size(), " cells in a table of ", columns_.size(),
                                " columns"));
  for (std::string& cell : cells) {
    cell = OnOneLine(cell);
  }
  rows_.push_back(std::move(cells));
}

size_t TextTable::WidestName(const std::vector<size_t>& widths) const {
  constexpr size_t kLeast = 12;  // enough of a name to recognize it
  size_t widest = columns_.size();
  for (size_t c = 0; c < columns_.size(); ++c) {
    const size_t least = std::max(kLeast, Width(columns_[c].header));
    if (columns_[c].align != Align::kLeft || widths[c] <= least) continue;
    if (widest == columns_.size() || widths[c] > widths[widest]) widest = c;
  }
  return widest;
}

std::string TextTable::ToString(int columns) const {
  std::vector<size_t> widths;
  size_t total = 0;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = Width(columns_[c].header);
    for (const std::vector<std::string>& row : rows_) width = std::max(width, Width(row[c]));
    widths.push_back(width);
    total += width;
  }
  size_t gap = 2;
  if (columns > 0) {
    const auto limit = static_cast<size_t>(columns);
    const size_t gaps = columns_.size() - 1;
    if (total + gap * gaps > limit) gap = 1;
    while (total + gap * gaps > limit) {
      const size_t widest = WidestName(widths);
      if (widest == columns_.size()) break;
      --widths[widest];
      --total;
    }
  }
  std::vector<std::string> header;
  std::vector<std::string> rule;
  for (size_t c = 0; c < columns_.size(); ++c) {
    header.push_back(Padded(columns_[c].header, widths[c], columns_[c].align));
    rule.push_back(std::string(widths[c], '-'));
  }
  std::string table = Line(header, gap) + Line(rule, gap);
  for (const std::vector<std::string>& row : rows_) {
    std::vector<std::string> padded;
    for (size_t c = 0; c < row.size(); ++c) {
      padded.push_back(Padded(ElidedInMiddle(row[c], widths[c]), widths[c], columns_[c].align));
    }
    table += Line(padded, gap);
  }
  return table;
}

}  // namespace stagecoach::base
