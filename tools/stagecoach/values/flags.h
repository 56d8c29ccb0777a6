#ifndef STAGECOACH_TOOLS_STAGECOACH_VALUES_FLAGS_H_
#define STAGECOACH_TOOLS_STAGECOACH_VALUES_FLAGS_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "kernels/quantized_matrix.h"

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

// Returns `name` if it is among `known`; the error lists those and suggests the nearest.
absl::StatusOr<std::string> ParseChoice(const std::string& name,
                                        const std::vector<std::string>& known);

// Returns a function that takes one of these names (ParseChoice).
inline auto Choice(std::vector<std::string> known) {
  return [known = std::move(known)](const std::string& text) { return ParseChoice(text, known); };
}

// Returns the parts of a text between commas, each read by `parse`, which returns an
// absl::StatusOr. Errors: the first of a part.
template <typename Parse>
auto ParseList(const std::string& text, Parse parse) {
  using Part = typename std::invoke_result_t<Parse, const std::string&>::value_type;
  using List = std::vector<Part>;
  const std::vector<std::string> texts = absl::StrSplit(text, ',');
  List list;
  for (const std::string& part : texts) {
    auto parsed = parse(part);
    if (!parsed.ok()) return absl::StatusOr<List>(std::move(parsed).status());
    list.push_back(*std::move(parsed));
  }
  return absl::StatusOr<List>(std::move(list));
}

// Parses the share of the stashes that are moved to the host's memory: "none", "full", or a number
// from 0 to 1.
absl::StatusOr<double> ParseOffload(const std::string& text);

// Returns a path, which must be neither "" nor "-", which stands for no file here.
absl::StatusOr<std::string> ParseFile(const std::string& path);
absl::StatusOr<std::string> ParseFolder(const std::string& path);
// Returns the name of a built-in chat template, or a path that ends in ".toml".
absl::StatusOr<std::string> ParseChatTemplate(const std::string& text);
// Returns the names of all ways to store frozen weights, and the one of a name.
std::vector<std::string> QuantizationNames();
absl::StatusOr<kernels::Quantization> ParseQuantizationFlag(const std::string& text);
// Checks the options of --lora (engine::ParseLora), unless it names a folder of adapters.
absl::StatusOr<std::string> ParseLoraFlag(const std::string& text);
// Returns the help of a flag that takes one: `text`, some of the names, and `fallback`.
std::string DescribeChatTemplate(const std::string& text, const std::string& fallback);
// Returns the path of a file that is read in one piece: "-" is standard input.
absl::StatusOr<std::string> ParseInput(const std::string& path);
// Returns the path of a file that is written in one piece. If it is "-", standard output is
// reserved for it (base::ReserveStandardOutput); InvalidArgument for a second one.
absl::StatusOr<std::string> ParseOutput(const std::string& path);

// Returns whether both are paths of one file, which need not exist; "" is the path of none.
bool IsSameFile(const std::string& a, const std::string& b);

// A file to write, and the flag that names it.
struct OutputFile {
  std::string flag, path;
};
// Returns InvalidArgument if two of them are the same file, only one of which would be left.
absl::Status CheckDistinct(absl::Span<const OutputFile> outputs);

// Parses a size above 0 (base/text/units.h).
absl::StatusOr<int64_t> ParseMemory(const std::string& text);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_VALUES_FLAGS_H_
