#ifndef STAGECOACH_TOOLS_STAGECOACH_COMMANDS_COMMAND_TEXTS_H_
#define STAGECOACH_TOOLS_STAGECOACH_COMMANDS_COMMAND_TEXTS_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace stagecoach::tools {

struct FlagText {
  std::vector<std::string> names;  // "--stages", "--devices"; for an argument: "trace"
  std::string placeholder;         // "N"; empty if it takes no value
  std::string description;
  std::string group;  // "Pipeline"; empty if its command has no groups

  bool is_argument() const { return !names[0].starts_with('-'); }
};

struct CommandText {
  std::string name;  // "train", "trace diff"
  std::string description;
  std::vector<FlagText> flags;
};

// Returns a manual page in the language of man(7), section 1. `commands` are in the order of the
// page; the program itself is not among them. `exit_status` is a sentence.
std::string ToManualPage(absl::Span<const CommandText> commands, const std::string& version,
                         const std::string& exit_status);

// Return scripts for bash (to be sourced), zsh (a file _stagecoach in a folder of $fpath) and fish,
// which complete the names of commands and flags, and files elsewhere.
std::string ToBashCompletion(absl::Span<const CommandText> commands);
std::string ToZshCompletion(absl::Span<const CommandText> commands);
std::string ToFishCompletion(absl::Span<const CommandText> commands);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_COMMANDS_COMMAND_TEXTS_H_
