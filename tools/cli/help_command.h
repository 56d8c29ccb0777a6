#ifndef STAGECOACH_TOOLS_CLI_HELP_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_HELP_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// `stagecoach help`: the help of a command, a manual page of all, and what makes a shell complete
// commands and flags. Describes what `app` has when it runs.
Command AddHelpCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_HELP_COMMAND_H_
