#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_MESSAGES_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_MESSAGES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace stagecoach::tools {

// Returns the prefix of an error of this process, which tells it from those of others on one
// terminal: "rank 2: " if a launcher has started it as one of several (engine/comm/launch.h),
// unless `message` names that rank first anyway; otherwise nothing.
std::string RankPrefix(absl::string_view message);

// Returns text that may quote flags, names and files, made safe for a terminal:
// base::EscapeControls, and words of more than 300 bytes, or lines of more than 2,000, have their
// middle replaced by their length.
std::string Printable(absl::string_view text);

// Prints "stagecoach: rank 2: text" to stderr, "rank 2: " being RankPrefix.
void PrintRankNotice(absl::string_view text);

// Prints "stagecoach: text" to stderr: a notice that a run prints once, so with several processes
// only rank 0 prints it.
void PrintNotice(absl::string_view text);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_MESSAGES_H_
