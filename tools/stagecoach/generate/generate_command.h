#ifndef STAGECOACH_TOOLS_STAGECOACH_GENERATE_GENERATE_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_GENERATE_GENERATE_COMMAND_H_

#include "tools/stagecoach/flags/cli11_fwd.h"
#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "generate": continues a text by a model of tokens, token by token.
Command AddGenerateCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_GENERATE_GENERATE_COMMAND_H_
