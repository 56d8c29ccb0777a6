#ifndef STAGECOACH_TOOLS_STAGECOACH_COMMANDS_TRACE_COMMAND_H_
#define STAGECOACH_TOOLS_STAGECOACH_COMMANDS_TRACE_COMMAND_H_

#include "tools/stagecoach/flags/command.h"

namespace stagecoach::tools {

// Adds "stagecoach trace diff|show": shows where a measured run differs from the simulated one, and
// draws a trace.
Command AddTraceCommand(CLI::App& app);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_COMMANDS_TRACE_COMMAND_H_
