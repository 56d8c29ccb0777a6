#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SUPERVISION_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SUPERVISION_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/stagecoach/launch/local_processes.h"

namespace stagecoach::tools {

// A run in several processes on this machine that is started again after a failure.
struct Supervision {
  LocalProcesses processes;  // of the first start; `variables` are filled in
  int max_restarts = 0;
  std::vector<std::string> restart_arguments;  // appended to the command from the first restart on
  // Told why processes are started again, which ("all", "3 of them", "it"), and how often that has
  // happened by now.
  std::function<void(const std::string& cause, const std::string& which, int restart)> on_restart;
  // Told which rank stopped first, and where the trace is (LaunchedRecorders), before all are
  // started again and before the line at the end. May be empty.
  std::function<void(const std::string& text)> on_diagnosis;
};

// Runs the processes; the variables that launchers set tell each its rank and where the ranks meet.
// After a failure that may not happen again, all are started again, without those whose device is
// gone; or only the one that failed, if the others can continue. A line on stderr says why they
// finally ended. Each start has a number of its own, which keeps out the processes of an earlier
// one. Returns the exit status of the last.
absl::StatusOr<int> Supervise(const Supervision& supervision);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SUPERVISION_H_
