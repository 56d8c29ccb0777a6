#ifndef STAGECOACH_TOOLS_CLI_LOCAL_PROCESS_H_
#define STAGECOACH_TOOLS_CLI_LOCAL_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "engine/launch/socket.h"
#include "tools/cli/local_processes.h"
#include "tools/cli/relay.h"

namespace stagecoach::tools {

// One of LocalProcesses.
struct LocalProcess {
  int rank = 0;
  pid_t pid = -1;
  std::optional<Relay> out, err;  // none where a file takes it
  engine::Descriptor supervisor;  // to it, if it may be replaced (engine/launch/supervisor.h)
  bool is_replacement = false;    // of one that was lost
  bool said_it_can_go_on = false;
  std::optional<int> status;     // as a shell reports it, once it has ended
  bool was_killed = false;       // by a signal
  bool was_told_to_end = false;  // by this program
  std::string why_killed;        // by this program; "" if it was not
  base::Deadline stopped_until = base::Deadline::Never();  // where it is stopped

  // Whether it goes on if another one is replaced: once it has said so, unless it has ended.
  bool CanGoOn();
  // Kills it and those that it has started, and passes on what they wrote.
  void EndAtOnce();
  void Drain();
};

// Starts the process of a rank of them. `said` outlives it. Unavailable: it, or a file for its
// output, cannot be made.
absl::StatusOr<LocalProcess> StartLocalProcess(const LocalProcesses& all, int rank,
                                               SaidErrors* said);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_LOCAL_PROCESS_H_
