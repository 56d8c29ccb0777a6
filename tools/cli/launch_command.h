#ifndef STAGECOACH_TOOLS_CLI_LAUNCH_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_LAUNCH_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// `stagecoach launch`: starts a command in several processes on this machine, as launchers do.
Command AddLaunchCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_LAUNCH_COMMAND_H_
