#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAIN_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAIN_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach train": splits a model over devices and trains it.
Command AddTrainCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAIN_COMMAND_H_
