#ifndef STAGECOACH_TOOLS_STAGECOACH_PROGRAM_H_
#define STAGECOACH_TOOLS_STAGECOACH_PROGRAM_H_

namespace stagecoach::tools {

// The command line, from its arguments to its exit status
// (tools/stagecoach/terminal/exit_status.h).
int RunProgram(int argc, char** argv);

// From here on, an exception that no thread catches, for want of memory or of threads, ends the
// program with one line and kExitBadConfiguration.
void EndInOneLineWithoutMeans();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_PROGRAM_H_
