#ifndef STAGECOACH_TOOLS_CLI_EXIT_STATUS_H_
#define STAGECOACH_TOOLS_CLI_EXIT_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::tools {

// What the program ends with; those above 2 as in BSD's sysexits.h.
enum ExitStatus : int {
  kExitOk = 0,
  kExitDifferent = 1,          // what a diff, a replay or a comparison of benches compares
  kExitUsage = 2,              // a flag or its value
  kExitBadData = 65,           // a file or folder that is read; numbers that are not finite
  kExitUnavailable = 69,       // a device, or what it needs, is not there
  kExitInternal = 70,          // anything that is not the user's doing
  kExitCannotWrite = 74,       // a file or folder that is to be written, or standard output
  kExitTryAgain = 75,          // another process has failed, or a deadline has passed
  kExitBadConfiguration = 78,  // what is asked for does not fit together: model, plan, memory
  // Stopped, as shells report it:
  kExitHungUp = 129,       // SIGHUP: the terminal is gone
  kExitInterrupted = 130,  // Ctrl-C
  kExitBrokenPipe = 141,   // SIGPIPE: nothing reads the output any more
  kExitTerminated = 143,   // SIGTERM
};

// The same, for --help.
inline constexpr char kExitStatusHelp[] =
    "Exit status: 0; 1 the bits differ, or a bench got slower; 2 wrong usage; 65 a bad file, or\n"
    "numbers that are not finite; 69 no such device; 70 internal error; 74 output cannot be\n"
    "written; 75 another process failed, or a deadline passed; 78 bad configuration; 129 stopped\n"
    "by SIGHUP, 130 by Ctrl-C, 141 by SIGPIPE, 143 by SIGTERM.";

// Where an error arose, which decides the exit status: kData is any file or folder that is read, or
// numbers that are not finite, kOutput any that is written.
enum class Origin { kUsage, kData, kConfiguration, kOutput, kRun };

// The same status, marked with its origin; the first mark counts. OK stays OK.
absl::Status From(Origin origin, absl::Status status);

template <typename T>
absl::StatusOr<T> From(Origin origin, absl::StatusOr<T> result) {
  if (!result.ok()) return From(origin, std::move(result).status());
  return result;
}

// Unmarked errors count as kRun. DataLoss of the kind kConfiguration is a damaged file that is read
// on the way, such as the tuning file, and so kExitBadData. Whatever the mark, Unavailable is
// kExitUnavailable, and an error of another rank, or a deadline, kExitTryAgain. ResourceExhausted
// of kRun, which the machine has no room for, is kExitBadConfiguration.
int ExitStatusOf(const absl::Status& status);

// Prints "stagecoach train: message" to stderr, the command being "train" (or "": "stagecoach: "),
// and returns the exit status. Among processes, "stagecoach train: rank 2: message". What a
// terminal would not show as text is escaped, and overlong values lose their middle (Printable).
int Fail(absl::string_view command, const absl::Status& status);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_EXIT_STATUS_H_
