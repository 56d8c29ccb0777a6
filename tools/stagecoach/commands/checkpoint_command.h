#ifndef STAGECOACH_TOOLS_STAGECOACH_COMMANDS_CHECKPOINT_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_COMMANDS_CHECKPOINT_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach checkpoint inspect|verify|diff|export": what a checkpoint holds, whether it is
// whole, in what two differ, and its parameters as one file.
Command AddCheckpointCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_COMMANDS_CHECKPOINT_COMMAND_H_
