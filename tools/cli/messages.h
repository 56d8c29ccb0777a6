#ifndef STAGECOACH_TOOLS_CLI_MESSAGES_H_
#define STAGECOACH_TOOLS_CLI_MESSAGES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace stagecoach::tools {

// What an error of this process begins with, so that it can be told from those of others on one
// terminal: "rank 2: " where a launcher has started it as one of several (engine/launch/launch.h),
// unless `message` names that rank first anyway; otherwise nothing.
std::string RankPrefix(absl::string_view message);

// Text that may quote flags, names and files, as a terminal may be given it: base::EscapeControls,
// and of a word of more than 300 bytes, or a line of more than 2,000, the middle is left out and
// its length said.
std::string Printable(absl::string_view text);

// Prints "stagecoach: rank 2: text" to stderr, "rank 2: " being RankPrefix.
void PrintRankNotice(absl::string_view text);

// Prints "stagecoach: text" to stderr: a notice that a run prints once, so among processes only
// that of rank 0 prints it.
void PrintNotice(absl::string_view text);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_MESSAGES_H_
