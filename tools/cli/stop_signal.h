#ifndef STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_
#define STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_

#include "tools/cli/exit_status.h"

namespace stagecoach::tools {

// From the first call on, the first Ctrl-C (or SIGTERM) only makes StopRequested true; the second
// ends the process.
void StopOnSignals();

// From the first call on, a closed output (SIGPIPE) or terminal (SIGHUP) only makes StopRequested
// true, unless it is ignored anyway, as nohup has it.
void StopOnHangUps();

// The same where a signal is not caught but read (signalfd).
void NoteStop(int signal);

bool StopRequested();
// The signal that did so first; 0: none.
int StopSignal();

// Whether there may be nobody any more to read what is printed.
bool HasHungUp();

// What a process ends with that such a signal has stopped, be it its own or that of another process
// of the run (engine::Vote::reason); kExitInterrupted if it is not known.
ExitStatus StatusOfStop(int signal = StopSignal());

// While it lives, hang-ups are StopOnHangUps'; its end then ends the process by that signal, so
// that what was begun can be cleaned up. One at a time.
class StopOnHangUp {
 public:
  StopOnHangUp() { StopOnHangUps(); }
  ~StopOnHangUp();
  StopOnHangUp(const StopOnHangUp&) = delete;
  StopOnHangUp& operator=(const StopOnHangUp&) = delete;

  bool has_hung_up() const { return HasHungUp(); }
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_STOP_SIGNAL_H_
