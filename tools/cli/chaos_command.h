#ifndef STAGECOACH_TOOLS_CLI_CHAOS_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_CHAOS_COMMAND_H_

#include "tools/cli/cli11_fwd.h"
#include "tools/cli/command.h"

namespace stagecoach::tools {

// Adds "chaos": trains in processes that are killed and stopped at random, and shows that the
// result has the bits of a run that was left alone.
Command AddChaosCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_CHAOS_COMMAND_H_
