#ifndef STAGECOACH_TOOLS_CLI_PROGRAM_H_
#define STAGECOACH_TOOLS_CLI_PROGRAM_H_

namespace stagecoach::tools {

// The command line, from its arguments to its exit status (tools/cli/exit_status.h).
int RunProgram(int argc, char** argv);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_PROGRAM_H_
