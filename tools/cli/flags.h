#ifndef STAGECOACH_TOOLS_CLI_FLAGS_H_
#define STAGECOACH_TOOLS_CLI_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

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

// A size above 0 (base/units.h).
absl::StatusOr<int64_t> ParseMemory(const std::string& text);

// Adds a flag called `name` that stores parse(text), where `parse` returns an absl::StatusOr. The
// help shows it as "name placeholder  description". Several names are separated by commas; errors
// have the first.
template <typename T, typename Parse>
CLI::Option* AddFlag(CLI::App& app, const std::string& name, const std::string& placeholder,
                     T& value, const std::string& description, Parse parse) {
  const std::string first_name = name.substr(0, name.find(','));
  const auto store = [first_name, &value, parse](const std::string& text) {
    auto parsed = parse(text);
    if (!parsed.ok()) {
      throw CLI::ValidationError(first_name, std::string(parsed.status().message()));
    }
    value = static_cast<T>(*std::move(parsed));
  };
  return app.add_option_function<std::string>(name, store, description)->option_text(placeholder);
}

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_FLAGS_H_
