#ifndef STAGECOACH_TOOLS_CLI_PREPARE_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_PREPARE_COMMAND_H_

#include "tools/cli/cli11_fwd.h"
#include "tools/cli/command.h"

namespace stagecoach::tools {

// Adds "prepare": makes files of tokens of a text (engine/data/prepare.h), which train reads.
Command AddPrepareCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_PREPARE_COMMAND_H_
