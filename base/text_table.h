#ifndef STAGECOACH_BASE_TEXT_TABLE_H_
#define STAGECOACH_BASE_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace stagecoach::base {

// A table for the terminal: columns padded to their widest cell and separated by two spaces, with a
// rule under the header.
//   stage  memory
//   -----  --------
//       0  390.2 MB
// Cells are UTF-8 and one code point is taken to be one column wide. Thread-compatible.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns);

  // One cell per column; anything else aborts.
  void AddRow(std::vector<std::string> cells);

  // Header, rule and rows, each ended by a newline and free of trailing spaces.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_TABLE_H_
