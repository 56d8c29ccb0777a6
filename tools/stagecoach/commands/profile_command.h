#ifndef STAGECOACH_TOOLS_STAGECOACH_COMMANDS_PROFILE_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_COMMANDS_PROFILE_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach profile": measures what each layer of a model costs, for planners.
Command AddProfileCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_COMMANDS_PROFILE_COMMAND_H_
