#ifndef STAGECOACH_TOOLS_STAGECOACH_COMMANDS_HELP_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_COMMANDS_HELP_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach help": the help of a command, a manual page of all, and the scripts with which a
// shell completes commands and flags. Describes what `app` has when it runs.
Command AddHelpCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_COMMANDS_HELP_COMMAND_H_
