#ifndef STAGECOACH_TOOLS_CLI_LOCAL_PROCESSES_H_
#define STAGECOACH_TOOLS_CLI_LOCAL_PROCESSES_H_

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/launch/launch.h"

// Processes of one run on this machine: started together, ended together.
namespace stagecoach::tools {

// How they ended.
struct EndOfProcesses {
  int status = 0;  // 0 if all have ended with it
  // Of the process that failed first, by its own account ("rank 2 has failed" points to rank 2): a
  // sentence without a period, "rank 2 was killed by signal 9 (Killed)". "": none has failed.
  std::string cause;
  int devices_lost = 0;      // processes that ended since their device is not there (status 69)
  bool was_stopped = false;  // by a signal that this process got
};

struct LocalProcesses {
  int processes = 1;
  std::vector<std::string>
      command;  // the program, by path or as the shell would find it; arguments
  // What each is told besides the variables of this process; asked in the new process.
  std::function<std::vector<std::pair<std::string, std::string>>(int rank)> variables;
  // Where each process's output goes, as DIR/rank-N.out and DIR/rank-N.err; "": to this one's.
  std::string log_dir;
  bool appends_logs = false;  // else they are begun anew
  // How long the others have to end by themselves once one has failed.
  absl::Duration patience = absl::Seconds(10);
  // How long one may be stopped (SIGSTOP) before it is killed.
  absl::Duration silence = absl::InfiniteDuration();
  // Asked once a second while all run: the rank that hangs, and where, for an error ("in the
  // forward pass of ..."). It is killed if the answer is twice the same. May be empty.
  struct Hang {
    int rank;
    std::string where;
  };
  std::function<std::optional<Hang>()> find_hang;
  // When a process has been lost, whether it may be replaced: what the others are told, all of
  // which can go on (engine/launch/supervisor.h), if so; `variables` are then asked for the new
  // one. Unset: no process is replaced.
  std::function<std::optional<engine::Launch>(const EndOfProcesses& lost)> replace;
  // Called every few milliseconds with the processes, by rank, while all run: for what is to
  // happen to them.
  std::function<void(absl::Span<const pid_t>)> disturb;
};

// Starts them and waits until all have ended. Lines of their output are passed on as they come,
// with "[rank] " in front, but for what rank 0 prints to stdout; an error that several ranks end
// with is passed on once (SaidErrors). SIGINT, SIGTERM and SIGHUP are passed
// on to all. When one has failed, or was killed, the others are asked to end after `patience`
// (SIGTERM), and killed two seconds later; all of them die with this process, whatever kills it.
//
// The status is that of the cause, 128 and the number of the signal if it was killed. Unavailable:
// a process or a file cannot be made; none is left then.
absl::StatusOr<EndOfProcesses> RunLocalProcesses(const LocalProcesses& processes);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_LOCAL_PROCESSES_H_
