#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LOCAL_PROCESSES_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LOCAL_PROCESSES_H_

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/comm/launch.h"

// Processes of one run on this machine: started together, ended together.
namespace stagecoach::tools {

// How the processes ended.
struct EndOfProcesses {
  int status = 0;  // 0 if all have ended with it
  // The process that failed first, by its own account ("rank 2 has failed" points to rank 2), as a
  // sentence without a period: "rank 2 was killed by signal 9 (Killed)". "": none has failed.
  std::string cause;
  std::vector<int> lost_devices;  // ranks that ended because their device is gone (status 69)
  bool was_stopped = false;       // by a signal that this process got
};

struct LocalProcesses {
  int processes = 1;
  std::vector<std::string>
      command;  // the program, by path or as the shell would find it; arguments
  // Returns the variables that each process gets in addition to those of this process; called in
  // the new process.
  std::function<std::vector<std::pair<std::string, std::string>>(int rank)> variables;
  // The folder of each process's output, as DIR/rank-N.out and DIR/rank-N.err; "": it goes to this
  // one's.
  std::string log_dir;
  bool appends_logs = false;  // otherwise they are truncated
  // The time that the others have to end by themselves once one has failed.
  absl::Duration patience = absl::Seconds(10);
  // The time that one may be stopped (SIGSTOP) before it is killed.
  absl::Duration silence = absl::InfiniteDuration();
  // Called once a second while all run: returns the rank that hangs, and where, for an error ("in
  // the forward pass of ..."). The rank is killed if the answer is twice the same. May be empty.
  struct Hang {
    int rank;
    std::string where;
  };
  std::function<std::optional<Hang>()> find_hang;
  // Called when a process has been lost; decides whether it may be replaced. If so, returns what
  // the others, all of which can continue (engine/comm/supervisor.h), are told; `variables` is then
  // called for the new one. Unset: no process is replaced.
  std::function<std::optional<engine::Launch>(const EndOfProcesses& lost)> replace;
  // Called every few milliseconds with the processes, by rank, while all run, to disturb them.
  std::function<void(absl::Span<const pid_t>)> disturb;
};

// Starts them and waits until all have ended. Lines of their output are passed on as they come,
// with "[rank] " in front, except for what rank 0 prints to stdout; an error that several ranks end
// with is passed on once (SaidErrors). SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to all.
// When one has failed, or was killed, the others are asked to end after `patience` (SIGTERM), and
// killed two seconds later; all of them die with this process, whatever kills it.
//
// The status is that of the cause, or 128 plus the number of the signal that killed it.
// Unavailable: a process or a file cannot be made; none is left then.
absl::StatusOr<EndOfProcesses> RunLocalProcesses(const LocalProcesses& processes);

// Returns the path of this program, to start it again. Internal: it cannot be found.
absl::StatusOr<std::string> OwnProgram();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LOCAL_PROCESSES_H_
