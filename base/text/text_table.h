#ifndef STAGECOACH_BASE_TEXT_TEXT_TABLE_H_
#define STAGECOACH_BASE_TEXT_TEXT_TABLE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace stagecoach::base {

// A table for the terminal: columns padded to their widest cell and separated by two spaces, with a
// rule under the header.
//   stage  memory
//   -----  --------
//       0  390.2 MB
// Cells are UTF-8, and one code point is taken to be one column wide. They may be names from files:
// control characters, including newlines, are shown as \x1b. Thread-compatible.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kLeft;
  };

  static constexpr int kPageColumns = 80;  // of a terminal of unknown width

  explicit TextTable(std::vector<Column> columns);

  // Adds a row of one cell per column; any other number aborts.
  void AddRow(std::vector<std::string> cells);

  // Returns header, rule and rows, each ended by a newline and free of trailing spaces. A table
  // that would be wider than `columns`, if that is not 0, has one space between its columns, and
  // then "…" in the middle of cells of kLeft columns, which are names; numbers keep all their
  // digits, however wide they are.
  std::string ToString(int columns = 0) const;

 private:
  // Returns the widest column of names that can be narrower; the number of columns if there is
  // none.
  size_t WidestName(const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_TEXT_TABLE_H_
