#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LAUNCH_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LAUNCH_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach launch": starts a command in several processes on this machine, as launchers do.
Command AddLaunchCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LAUNCH_COMMAND_H_
