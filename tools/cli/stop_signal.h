#ifndef STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_
#define STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_

#include "tools/cli/exit_status.h"

namespace stagecoach::tools {

// From the first call on, the first Ctrl-C (or SIGTERM) only makes StopRequested true; the second
// ends the process.
void StopOnSignals();

bool StopRequested();

// What a process that was stopped ends with: kExitTerminated if the first of them was its own
// SIGTERM, else kExitInterrupted, also where another process of the run was stopped.
ExitStatus StatusOfStop();

// While it lives, a closed output (SIGPIPE) or terminal (SIGHUP) only makes StopRequested true, so
// that what was begun can be cleaned up; its end then ends the process by that signal. One at a
// time.
class StopOnHangUp {
 public:
  StopOnHangUp();
  ~StopOnHangUp();
  StopOnHangUp(const StopOnHangUp&) = delete;
  StopOnHangUp& operator=(const StopOnHangUp&) = delete;

  bool has_hung_up() const;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_
