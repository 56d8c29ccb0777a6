#ifndef STAGECOACH_TOOLS_CLI_TRAIN_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_TRAIN_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// "stagecoach train": cuts a model over devices and trains it.
Command AddTrainCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_TRAIN_COMMAND_H_
