#ifndef STAGECOACH_TOOLS_STAGECOACH_FLAGS_ADD_FLAG_H_
#define STAGECOACH_TOOLS_STAGECOACH_FLAGS_ADD_FLAG_H_

// For sources that register flags only: CLI11 takes long to compile.
#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {

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

// The type of options that name a file to be written. No two of a command may name the same one.
inline constexpr char kOutputFile[] = "OUTPUT";

template <typename Parse = decltype(&ParseOutput)>
CLI::Option* AddOutput(CLI::App& app, const std::string& name, const std::string& placeholder,
                       std::string& path, const std::string& description,
                       Parse parse = &ParseOutput) {
  return AddFlag(app, name, placeholder, path, description, parse)->type_name(kOutputFile);
}

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_FLAGS_ADD_FLAG_H_
