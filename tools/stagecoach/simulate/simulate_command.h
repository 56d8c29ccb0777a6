#ifndef STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATE_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATE_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach simulate": generates or reads a schedule, proves it, performs it in virtual time
// and draws it. Needs no device and no model.
Command AddSimulateCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATE_COMMAND_H_
