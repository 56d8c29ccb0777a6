#ifndef STAGECOACH_TOOLS_CLI_DEVICES_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_DEVICES_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// "stagecoach devices": what this machine can train on.
Command AddDevicesCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_DEVICES_COMMAND_H_
