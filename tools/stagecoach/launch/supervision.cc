#include "tools/stagecoach/launch/supervision.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/comm/free_port.h"
#include "engine/comm/launch.h"
#include "engine/session/machine/recorders.h"
#include "tools/stagecoach/launch/launched_recorders.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/messages.h"

namespace stagecoach::tools {
namespace {

// Processes that share cores may all be some seconds late.
constexpr absl::Duration kShortestHang = absl::Seconds(5);
constexpr const char* kLocalhost = "127.0.0.1";

// Identifies one of the starts of a run.
struct ProcessGeneration {
  std::vector<int> devices;    // of its ranks, by their numbers at the first start
  bool lacks_devices = false;  // some have been lost
  int restarts = 0;
  bool replaces = false;  // single processes, while the others live on
  pid_t launcher = getpid();
  absl::Time started = absl::Now();  // the first
  std::string recorders;             // the folder of flight-recorder files

  std::string id() const {
    return absl::StrCat(launcher, ".", absl::ToUnixSeconds(started), ".", restarts);
  }
};

std::string PlaceAt(int port) { return absl::StrCat("tcp://", kLocalhost, ":", port); }

// Returns the variables that launchers set: this program's own, and those of torchrun, which many
// others read.
std::vector<std::pair<std::string, std::string>> VariablesOf(int rank, int port,
                                                             const ProcessGeneration& generation) {
  const std::string number = absl::StrCat(rank);
  const std::string count = absl::StrCat(generation.devices.size());
  std::vector<std::pair<std::string, std::string>> variables = {
      {"STAGECOACH_RANK", number},
      {"STAGECOACH_RANKS", count},
      {"STAGECOACH_LOCAL_RANK", number},
      {"STAGECOACH_RENDEZVOUS", PlaceAt(port)},
      // A process of an earlier start that still exists cannot join.
      {"STAGECOACH_LAUNCH", generation.id()},
      {"STAGECOACH_RESTARTS", absl::StrCat(generation.restarts)},
      {"STAGECOACH_STARTED", absl::StrCat(absl::ToUnixSeconds(generation.started))},
      {engine::kRecordersVariable, generation.recorders},
      {"RANK", number},
      {"WORLD_SIZE", count},
      {"LOCAL_RANK", number},
      {"LOCAL_WORLD_SIZE", count},
      {"MASTER_ADDR", kLocalhost},
      {"MASTER_PORT", absl::StrCat(port + 1)}};
  if (generation.lacks_devices) {
    variables.emplace_back("STAGECOACH_DEVICES", absl::StrJoin(generation.devices, ","));
  }
  if (generation.replaces) variables.emplace_back("STAGECOACH_REPLACEMENT", "1");
  return variables;
}

// Returns whether the same processes might succeed at another time.
bool MayDoBetter(const EndOfProcesses& end) {
  const bool is_users_doing = end.status == kExitUsage || end.status == kExitBadData ||
                              end.status == kExitBadConfiguration ||
                              end.status == kExitCannotWrite || end.status == kExitHungUp ||
                              end.status == kExitInterrupted || end.status == kExitBrokenPipe ||
                              end.status == kExitTerminated;
  return !end.cause.empty() && !end.was_stopped && !is_users_doing;
}

}  // namespace

absl::StatusOr<int> Supervise(const Supervision& supervision) {
  LocalProcesses processes = supervision.processes;
  ASSIGN_OR_RETURN(const std::unique_ptr<LaunchedRecorders> recorders,
                   LaunchedRecorders::Make(processes.log_dir));
  const auto explain = [&](bool is_last) {
    if (!supervision.on_diagnosis) return;
    const std::string text = recorders->Explain(is_last);
    if (!text.empty()) supervision.on_diagnosis(text);
  };
  ProcessGeneration generation = {.recorders = recorders->folder()};
  generation.devices.resize(static_cast<size_t>(processes.processes));
  std::iota(generation.devices.begin(), generation.devices.end(), 0);
  std::optional<engine::FreePort> port;
  processes.variables = [&](int rank) { return VariablesOf(rank, port->number(), generation); };
  const auto may_restart = [&](const EndOfProcesses& end) {
    return MayDoBetter(end) && generation.restarts < supervision.max_restarts;
  };
  const auto restart = [&](const EndOfProcesses& end, const std::string& which) {
    recorders->Clear();
    if (generation.restarts++ == 0) {
      processes.command.insert(processes.command.end(), supervision.restart_arguments.begin(),
                               supervision.restart_arguments.end());
    }
    processes.appends_logs = true;
    if (supervision.on_restart) supervision.on_restart(end.cause, which, generation.restarts);
  };
  if (processes.silence < absl::InfiniteDuration()) {
    processes.find_hang = [&]() -> std::optional<LocalProcesses::Hang> {
      const std::optional<engine::HangReport> still =
          recorders->FindHang(std::max(processes.silence, kShortestHang));
      if (!still.has_value()) return std::nullopt;
      return LocalProcesses::Hang{
          still->device,
          absl::StrCat(still->place, " for ",
                       absl::FormatDuration(absl::Trunc(still->since, absl::Milliseconds(100))))};
    };
  }
  if (supervision.max_restarts > 0) {
    processes.replace = [&](const EndOfProcesses& lost) -> std::optional<engine::Launch> {
      if (!may_restart(lost) || !lost.lost_devices.empty()) return std::nullopt;
      absl::StatusOr<engine::FreePort> next = engine::FreePort::Take();
      if (!next.ok()) return std::nullopt;
      port = *std::move(next);
      restart(lost, "it");
      generation.replaces = true;
      return engine::Launch{.id = generation.id(),
                            .rendezvous = PlaceAt(port->number()),
                            .restarts = generation.restarts};
    };
  }
  while (true) {
    ASSIGN_OR_RETURN(port, engine::FreePort::Take());
    generation.replaces = false;
    processes.processes = static_cast<int>(generation.devices.size());
    ASSIGN_OR_RETURN(const EndOfProcesses end, RunLocalProcesses(processes));
    if (end.cause.empty()) return end.status;
    std::vector<int> left;
    for (int rank = 0; rank < processes.processes; ++rank) {
      if (absl::c_linear_search(end.lost_devices, rank)) continue;
      left.push_back(generation.devices[static_cast<size_t>(rank)]);
    }
    const bool is_last = !may_restart(end) || left.empty();
    if (!end.was_stopped) explain(is_last);
    if (is_last) {
      std::fprintf(stderr, "stagecoach launch: %s\n", Printable(end.cause).c_str());
      return end.status;
    }
    const bool are_all = std::ssize(left) == supervision.processes.processes;
    restart(end, are_all ? "all" : absl::StrCat(left.size(), " of them"));
    generation.devices = std::move(left);
    generation.lacks_devices = !are_all;
  }
}

}  // namespace stagecoach::tools
