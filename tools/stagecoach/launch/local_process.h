#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LOCAL_PROCESS_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LOCAL_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "engine/comm/socket.h"
#include "tools/stagecoach/launch/local_processes.h"
#include "tools/stagecoach/launch/relay.h"

namespace stagecoach::tools {

// One of LocalProcesses.
struct LocalProcess {
  int rank = 0;
  pid_t pid = -1;
  std::optional<Relay> out, err;  // none if a file takes it
  engine::Descriptor supervisor;  // to it, if replaceable (engine/comm/supervisor.h)
  bool is_replacement = false;    // of a process that was lost
  bool said_it_can_go_on = false;
  std::optional<int> status;     // as a shell reports it, once it has ended
  bool was_killed = false;       // by a signal
  bool was_told_to_end = false;  // by this program
  std::string why_killed;        // the reason why this program killed it; "" if it did not
  base::Deadline stopped_until = base::Deadline::Never();  // while it is stopped

  // Returns whether it can continue if another one is replaced: once it has said so, unless it has
  // ended.
  bool CanGoOn();
  // Kills it and the processes that it has started, and passes on what they wrote.
  void EndAtOnce();
  void Drain();
};

// Starts the process of one rank. `said` outlives it. Unavailable: it, or a file for its output,
// cannot be made.
absl::StatusOr<LocalProcess> StartLocalProcess(const LocalProcesses& all, int rank,
                                               SaidErrors* said);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LOCAL_PROCESS_H_
