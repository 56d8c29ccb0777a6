#ifndef STAGECOACH_TOOLS_STAGECOACH_COMMANDS_DEVICES_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_COMMANDS_DEVICES_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach devices": what this machine can train on.
Command AddDevicesCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_COMMANDS_DEVICES_COMMAND_H_
