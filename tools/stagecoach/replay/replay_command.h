#ifndef STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// "stagecoach replay": trains some steps of a saved run twice and compares the bits.
Command AddReplayCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_COMMAND_H_
