#ifndef STAGECOACH_TOOLS_STAGECOACH_PLAN_PLAN_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_PLAN_PLAN_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach plan": shows how a model would be divided, without training it.
Command AddPlanCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_PLAN_PLAN_COMMAND_H_
