#ifndef STAGECOACH_TOOLS_CLI_REPLAY_COMMAND_H_
#define STAGECOACH_TOOLS_CLI_REPLAY_COMMAND_H_

#include "tools/cli/command.h"

namespace stagecoach::tools {

// "stagecoach replay": trains some steps of a saved run twice and compares the bits.
Command AddReplayCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_REPLAY_COMMAND_H_
