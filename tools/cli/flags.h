#ifndef STAGECOACH_TOOLS_CLI_FLAGS_H_
#define STAGECOACH_TOOLS_CLI_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::tools {

// Flags whose values are read strictly: no octal numbers, trailing letters, silent overflow or
// names that are nearly right. A bad value ends the parse with one line (CLI::ValidationError). The
// values referred to must outlive the parse.

// Parses a whole number in [min, max]; the error says what was expected.
absl::StatusOr<int64_t> ParseCount(const std::string& text, int64_t min, int64_t max);

// A number in [min, max], or in (min, max] if `above_min`.
struct NumberRange {
  double min = 0.0;
  double max = 0.0;
  bool above_min = false;
};
absl::StatusOr<double> ParseNumber(const std::string& text, const NumberRange& range);

// `name` if it is among `known`; the error lists those and gives the nearest.
absl::StatusOr<std::string> ParseChoice(const std::string& name,
                                        const std::vector<std::string>& known);

// A path, which must not be "".
absl::StatusOr<std::string> ParseFile(const std::string& path);
absl::StatusOr<std::string> ParseFolder(const std::string& path);

// Whether both are paths of one file, which need not exist; "" is of none.
bool IsSameFile(const std::string& a, const std::string& b);

// A file that is to be written, and the flag that names it.
struct OutputFile {
  std::string flag, path;
};
// InvalidArgument if two of them are the same file, of which only one would be left.
absl::Status CheckDistinct(absl::Span<const OutputFile> outputs);

// A size above 0 (base/units.h).
absl::StatusOr<int64_t> ParseMemory(const std::string& text);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_FLAGS_H_
