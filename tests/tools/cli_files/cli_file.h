#ifndef STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_FILE_H_
#define STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Reads files of command-line tests; tests/tools/cli_test.cc describes their format and runs them.
namespace stagecoach::tools {

// The text that stands for "$name".
using CliNames = std::map<std::string, std::string>;

// A line of a case: what to do, or what to expect.
struct CliStep {
  std::string key;
  std::string text;   // the rest of the line
  std::string block;  // the indented lines below it, without the indentation
  int line_number = 0;
};

struct CliCase {
  std::string name;
  int line_number = 0;
  std::vector<CliStep> steps;  // with all names replaced, except those that `keep` defines
};

// Returns the cases of a file. An error begins with the number of the line that is wrong. `names`
// are those that every file may use.
absl::StatusOr<std::vector<CliCase>> ParseCliFile(const std::string& text, const CliNames& names);

// Returns `text` with the names replaced; others stay as they are.
std::string WithNames(absl::string_view text, const CliNames& names);

// Splits a line into words. Double quotes hold one together, and have the escapes of C.
absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_FILE_H_
