#ifndef STAGECOACH_TOOLS_CLI_PROFILE_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_PROFILE_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// "stagecoach profile": measures what each layer of a model takes, for planners.
Command AddProfileCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_PROFILE_COMMAND_H_
