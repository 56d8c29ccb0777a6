#ifndef STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_
#define STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_

namespace stagecoach::tools {

// From the first call on, the first Ctrl-C (or SIGTERM) only makes StopRequested true; the second
// ends the process.
void StopOnSignals();

bool StopRequested();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_
