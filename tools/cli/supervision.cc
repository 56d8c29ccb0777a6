#include "tools/cli/supervision.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/launch/free_port.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/rings.h"

namespace stagecoach::tools {
namespace {

constexpr const char* kLocalhost = "127.0.0.1";

// Which of the starts of a run this is.
struct Generation {
  int ranks = 1;
  int restarts = 0;
  pid_t launcher = getpid();
  absl::Time started = absl::Now();  // the first
  std::string rings;                 // folder
};

// What launchers set: this program's own variables, and those of torchrun, which many others read.
std::vector<std::pair<std::string, std::string>> VariablesOf(int rank, int port,
                                                             const Generation& generation) {
  const std::string number = absl::StrCat(rank);
  const std::string count = absl::StrCat(generation.ranks);
  const int64_t started = absl::ToUnixSeconds(generation.started);
  return {{"STAGECOACH_RANK", number},
          {"STAGECOACH_RANKS", count},
          {"STAGECOACH_LOCAL_RANK", number},
          {"STAGECOACH_RENDEZVOUS", absl::StrCat("tcp://", kLocalhost, ":", port)},
          // A process of an earlier start that is still there cannot join.
          {"STAGECOACH_LAUNCH",
           absl::StrCat(generation.launcher, ".", started, ".", generation.restarts)},
          {"STAGECOACH_RESTARTS", absl::StrCat(generation.restarts)},
          {"STAGECOACH_STARTED", absl::StrCat(started)},
          {kRingsVariable, generation.rings},
          {"RANK", number},
          {"WORLD_SIZE", count},
          {"LOCAL_RANK", number},
          {"LOCAL_WORLD_SIZE", count},
          {"MASTER_ADDR", kLocalhost},
          {"MASTER_PORT", absl::StrCat(port + 1)}};
}

// Whether the same processes might do better at another time.
bool MayDoBetter(const EndOfProcesses& end) {
  const bool is_users_doing = end.status == kExitUsage || end.status == kExitBadData ||
                              end.status == kExitBadConfiguration ||
                              end.status == kExitCannotWrite || end.status == kExitInterrupted;
  return !end.cause.empty() && !end.was_stopped && !is_users_doing;
}

}  // namespace

absl::StatusOr<int> Supervise(const Supervision& supervision) {
  LocalProcesses processes = supervision.processes;
  ASSIGN_OR_RETURN(const std::unique_ptr<LaunchedRings> rings,
                   LaunchedRings::Make(processes.log_dir));
  const auto explain = [&](bool is_last) {
    if (!supervision.on_diagnosis) return;
    const std::string text = rings->Explain(is_last);
    if (!text.empty()) supervision.on_diagnosis(text);
  };
  Generation generation = {.ranks = processes.processes, .rings = rings->folder()};
  while (true) {
    ASSIGN_OR_RETURN(const engine::FreePort port, engine::FreePort::Take());
    processes.processes = generation.ranks;
    processes.variables = [&](int rank) { return VariablesOf(rank, port.number(), generation); };
    ASSIGN_OR_RETURN(const EndOfProcesses end, RunLocalProcesses(processes));
    if (end.cause.empty()) return end.status;
    const int left = generation.ranks - end.devices_lost;
    if (!MayDoBetter(end) || generation.restarts == supervision.max_restarts || left < 1) {
      if (!end.was_stopped) explain(/*is_last=*/true);
      std::fprintf(stderr, "stagecoach launch: %s\n", end.cause.c_str());
      return end.status;
    }
    explain(/*is_last=*/false);
    rings->Clear();
    ++generation.restarts;
    if (supervision.on_restart) supervision.on_restart(end.cause, left, generation.restarts);
    generation.ranks = left;
    processes.appends_logs = true;
    if (generation.restarts == 1) {
      processes.command.insert(processes.command.end(), supervision.restart_arguments.begin(),
                               supervision.restart_arguments.end());
    }
  }
}

}  // namespace stagecoach::tools
