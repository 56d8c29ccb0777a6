#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_EXIT_STATUS_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_EXIT_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace stagecoach::tools {

// The exit statuses of the program; those above 2 are as in BSD's sysexits.h.
enum ExitStatus : int {
  kExitOk = 0,
  kExitDifferent = 1,          // a diff, a replay or a comparison of benches found a difference
  kExitUsage = 2,              // a flag or its value
  kExitBadData = 65,           // a file or folder that is read; NaN or infinity
  kExitUnavailable = 69,       // a device, or what it needs, is missing
  kExitInternal = 70,          // anything that is not the user's fault
  kExitCannotWrite = 74,       // a file or folder to write, or standard output
  kExitTryAgain = 75,          // another process has failed, or a deadline has passed
  kExitBadConfiguration = 78,  // the parts of the request do not fit together: model, plan, memory
  // Stopped by a signal, as shells report it:
  kExitHungUp = 129,       // SIGHUP: the terminal is gone
  kExitInterrupted = 130,  // Ctrl-C
  kExitBrokenPipe = 141,   // SIGPIPE: nothing reads the output any more
  kExitTerminated = 143,   // SIGTERM
};

// The same table, for --help.
inline constexpr char kExitStatusHelp[] =
    "Exit status: 0; 1 results differ, or a bench got slower; 2 wrong usage; 65 bad data, or NaN\n"
    "or infinity; 69 no such device; 70 internal error; 74 cannot write; 75 another process "
    "failed,\n"
    "or a timeout; 78 bad configuration; stopped by 129 SIGHUP, 130 Ctrl-C, 141 SIGPIPE, 143 "
    "SIGTERM.";

// Returns the exit status of an error's class (base::ClassOf). An error of another rank is
// kExitTryAgain, unless that is kOutput: the rank in which it arose reports what it was.
int ExitStatusOf(const absl::Status& status);

// Prints "stagecoach train: message" to stderr, where "train" is the command (if "": "stagecoach:
// "), and returns the exit status. With several processes, it prints "stagecoach train: rank 2:
// message". Characters that a terminal would not show as text are escaped, and overlong values lose
// their middle (Printable).
int Fail(absl::string_view command, const absl::Status& status);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_EXIT_STATUS_H_
