#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_STOP_SIGNAL_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_STOP_SIGNAL_H_

#include "tools/stagecoach/terminal/exit_status.h"

namespace stagecoach::tools {

// From the first call on, the first Ctrl-C (or SIGTERM) only makes StopRequested true; the second
// ends the process.
void StopOnSignals();

// From the first call on, a closed output (SIGPIPE) or terminal (SIGHUP) only makes StopRequested
// true, unless it is ignored anyway, as under nohup.
void StopOnHangUps();

// Does the same for a signal that is not caught but read (signalfd).
void NoteStop(int signal);

bool StopRequested();
// Returns the signal that did so first; 0: none.
int StopSignal();

// From the first call on, SIGUSR1 only makes the next SaveRequested true.
void SaveOnSignal();

// Returns whether a checkpoint has been asked for since the last call.
bool SaveRequested();

// Returns whether there may no longer be anyone to read what is printed.
bool HasHungUp();

// Returns the exit status of a process that such a signal has stopped, be it its own or that of
// another process of the run (engine::Vote::reason); kExitInterrupted if it is not known.
ExitStatus StatusOfStop(int signal = StopSignal());

// Treats hang-ups as StopOnHangUps does during its lifetime; its end then ends the process by that
// signal, so that work in progress can be cleaned up. Only one at a time.
class StopOnHangUp {
 public:
  StopOnHangUp() { StopOnHangUps(); }
  ~StopOnHangUp();
  StopOnHangUp(const StopOnHangUp&) = delete;
  StopOnHangUp& operator=(const StopOnHangUp&) = delete;

  bool has_hung_up() const { return HasHungUp(); }
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_STOP_SIGNAL_H_
