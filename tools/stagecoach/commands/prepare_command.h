#ifndef STAGECOACH_TOOLS_STAGECOACH_COMMANDS_PREPARE_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_COMMANDS_PREPARE_COMMAND_H_

#include "tools/stagecoach/flags/cli11_fwd.h"
#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "prepare": makes token files from a text (engine/data/tokens/prepare.h), which train reads.
Command AddPrepareCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_COMMANDS_PREPARE_COMMAND_H_
