#ifndef STAGECOACH_TOOLS_CLI_SUPERVISION_H_
#define STAGECOACH_TOOLS_CLI_SUPERVISION_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/local_processes.h"

namespace stagecoach::tools {

// A run in several processes on this machine that is started again after a failure.
struct Supervision {
  LocalProcesses processes;  // of the first start; `variables` are filled in
  int max_restarts = 0;
  std::vector<std::string> restart_arguments;  // behind the command, from the first restart on
  // Told why processes are started again, which ("all", "3 of them", "it"), and how often that has
  // happened now.
  std::function<void(const std::string& cause, const std::string& which, int restart)> on_restart;
  // Told which rank has stopped first, and where the trace is (LaunchedRings), before all are
  // started again and before the line at the end. May be empty.
  std::function<void(const std::string& text)> on_diagnosis;
};

// Runs the processes, each of which is told its rank and where the ranks meet by the variables that
// launchers set. After a failure that may not happen again, all are started again, without those
// whose device is gone; or only the one that failed, if the others can go on. A line on stderr says
// why they ended in the end. Each start has a number of its own, by which the processes of an
// earlier one are kept out. Returns the exit status of the last.
absl::StatusOr<int> Supervise(const Supervision& supervision);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_SUPERVISION_H_
