#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_CHAOS_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_CHAOS_COMMAND_H_

#include "tools/stagecoach/flags/cli11_fwd.h"
#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "chaos": trains in processes that are killed and stopped at random, and shows that the
// result has the bits of an undisturbed run.
Command AddChaosCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_CHAOS_COMMAND_H_
