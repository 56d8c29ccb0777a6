#ifndef STAGECOACH_TOOLS_CLI_PLAN_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_PLAN_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// "stagecoach plan": how a model would be cut, without training it.
Command AddPlanCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_PLAN_COMMAND_H_
