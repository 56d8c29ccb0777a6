#ifndef STAGECOACH_TOOLS_CLI_CHECKPOINT_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_CHECKPOINT_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// `stagecoach checkpoint inspect|verify|diff|export`: what a checkpoint holds, whether it is whole,
// in what two differ, and its parameters as one file.
Command AddCheckpointCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_CHECKPOINT_COMMAND_H_
