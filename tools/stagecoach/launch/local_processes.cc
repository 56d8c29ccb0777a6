#include "tools/stagecoach/launch/local_processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/comm/socket.h"
#include "engine/comm/supervisor.h"
#include "tools/stagecoach/launch/local_process.h"
#include "tools/stagecoach/launch/relay.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/stop_signal.h"

namespace stagecoach::tools {
namespace {

using engine::Descriptor;

constexpr absl::Duration kFromTermToKill = absl::Seconds(2);
constexpr absl::Duration kBetweenLooks = absl::Seconds(1);
constexpr absl::Duration kBetweenDisturbances = absl::Milliseconds(5);

// Returns the rank that a line says has failed: 2 in "rank 1: rank 2 has failed: no memory".
std::optional<int> BlamedIn(absl::string_view line) {
  constexpr absl::string_view kRank = "rank ";
  for (const absl::string_view what : {" has failed", " was killed"}) {
    const size_t end = line.find(what);
    if (end == absl::string_view::npos) continue;
    const size_t begin = line.rfind(kRank, end);
    int rank = 0;
    if (begin == absl::string_view::npos) continue;
    const size_t number = begin + kRank.size();
    if (absl::SimpleAtoi(line.substr(number, end - number), &rank)) return rank;
  }
  return std::nullopt;
}

base::Deadline Earlier(base::Deadline a, base::Deadline b) {
  return base::Deadline::At(std::min(a.time(), b.time()));
}

int ShellStatus(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

class Group {
 public:
  explicit Group(const LocalProcesses& given) : given_(given) {}
  ~Group() { Signal(SIGKILL); }

  absl::StatusOr<EndOfProcesses> Run() {
    RETURN_IF_ERROR(CatchSignals());
    processes_.reserve(static_cast<size_t>(given_.processes));  // failed_ points to them
    for (int rank = 0; rank < given_.processes; ++rank) {
      ASSIGN_OR_RETURN(LocalProcess process, StartLocalProcess(given_, rank, &said_));
      processes_.push_back(std::move(process));
    }
    while (IsRunning()) {
      RETURN_IF_ERROR(WaitForSomething());
      EndTheSilent();
      EndTheHanging();
      EndTheRest();
      if (given_.disturb && !reason_.has_value()) Disturb();
    }
    Signal(SIGKILL);  // the processes that they have started themselves and left
    for (LocalProcess& process : processes_) process.Drain();
    return failed_.empty() && reason_.has_value() ? *reason_ : Conclude(failed_);
  }

 private:
  absl::Status CatchSignals() {
    sigset_t caught;
    sigemptyset(&caught);
    sigaddset(&caught, SIGCHLD);
    // SIGPIPE means that nobody reads what they print any more.
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
      struct sigaction action = {};
      sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) sigaddset(&caught, signal);  // nohup ignores SIGHUP
    }
    sigaddset(&caught, SIGUSR1);
    // The signals are blocked from here on: the program ends when its processes have.
    sigprocmask(SIG_BLOCK, &caught, nullptr);
    signals_ = Descriptor(signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) return absl::ErrnoToStatus(errno, "cannot wait for signals");
    return absl::OkStatus();
  }

  bool IsRunning() const {
    return std::any_of(processes_.begin(), processes_.end(),
                       [](const LocalProcess& process) { return !process.status.has_value(); });
  }

  absl::Status WaitForSomething() {
    std::vector<pollfd> polled = {{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
    std::vector<Relay*> relays;
    for (LocalProcess& process : processes_) {
      for (std::optional<Relay>* const relay : {&process.out, &process.err}) {
        if (!relay->has_value() || !(*relay)->from().valid()) continue;
        relays.push_back(&**relay);
        polled.push_back({.fd = (*relay)->from().get(), .events = POLLIN, .revents = 0});
      }
    }
    base::Deadline until = next_;
    for (const LocalProcess& process : processes_) until = Earlier(until, process.stopped_until);
    if (given_.find_hang) until = Earlier(until, next_look_);
    if (given_.disturb) until = Earlier(until, base::Deadline::After(kBetweenDisturbances));
    if (poll(polled.data(), polled.size(), engine::PollTimeout(until)) < 0) {
      return absl::OkStatus();
    }
    for (size_t i = 0; i < relays.size(); ++i) {
      if (polled[i + 1].revents != 0) relays[i]->PassOn();
    }
    return polled[0].revents != 0 ? HandleSignals() : absl::OkStatus();
  }

  absl::Status HandleSignals() {
    signalfd_siginfo info = {};
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGCHLD) continue;
      if (info.ssi_signo == SIGUSR1) {  // they save, and go on
        Signal(SIGUSR1);
        continue;
      }
      was_stopped_ = true;
      NoteStop(static_cast<int>(info.ssi_signo));
      for (LocalProcess& process : processes_) {
        process.was_told_to_end = true;
        process.supervisor = Descriptor();  // no process is replaced any more
      }
      Signal(static_cast<int>(info.ssi_signo));
    }
    for (LocalProcess& process : processes_) {
      int status = 0;
      constexpr int kAllChanges = WNOHANG | WUNTRACED | WCONTINUED;
      while (!process.status.has_value() && waitpid(process.pid, &status, kAllChanges) > 0) {
        HandleChange(process, status);
      }
    }
    return ReplaceLost();
  }

  void HandleChange(LocalProcess& process, int status) {
    if (WIFSTOPPED(status)) {
      process.stopped_until = base::Deadline::After(given_.silence);
      return;
    }
    process.stopped_until = base::Deadline::Never();
    if (WIFCONTINUED(status)) return;
    process.status = ShellStatus(status);
    process.was_killed = WIFSIGNALED(status);
    if (*process.status != 0 && !process.was_told_to_end) lost_.push_back(&process);
    if (*process.status == 0 && IsMeeting()) GiveUp(*replaced_);
  }

  // Returns whether a replacement has not met the others yet: it never will if one of them has done
  // all its work without having heard of the loss.
  bool IsMeeting() {
    return std::any_of(processes_.begin(), processes_.end(), [](LocalProcess& process) {
      return process.is_replacement && !process.status.has_value() && !process.CanGoOn();
    });
  }

  // Ends all; what has been lost is the reason, unless there is a reason already.
  void GiveUp(const EndOfProcesses& lost) {
    if (reason_.has_value()) return;
    reason_ = lost;
    next_ = base::Deadline::After(given_.patience);
    for (LocalProcess& process : processes_) process.supervisor = Descriptor();
  }

  // Replaces those that have just failed, if possible; otherwise ends all others.
  absl::Status ReplaceLost() {
    if (lost_.empty()) return absl::OkStatus();
    std::optional<engine::Launch> next;
    const EndOfProcesses lost = Conclude(lost_);
    if (MayReplace()) next = given_.replace(lost);
    if (!next.has_value()) {
      // Processes that fail from now on may tell more of the reason.
      failed_.insert(failed_.end(), lost_.begin(), lost_.end());
      lost_.clear();
      GiveUp(lost);
      return absl::OkStatus();
    }
    lost_.clear();
    replaced_ = lost;
    const std::string text = engine::Supervisor::ToText(*next);
    for (LocalProcess& process : processes_) {
      if (process.CanGoOn()) {
        send(process.supervisor.get(), text.data(), text.size(), MSG_NOSIGNAL);
        continue;
      }
      process.EndAtOnce();
      ASSIGN_OR_RETURN(process, StartLocalProcess(given_, process.rank, &said_));
      process.is_replacement = true;
    }
    return absl::OkStatus();
  }

  // Returns whether some of the others can continue. Those that cannot yet are replacements
  // themselves, and are replaced as well.
  bool MayReplace() {
    const bool is_ending = reason_.has_value() || was_stopped_;
    const bool all_are_causes =
        std::all_of(lost_.begin(), lost_.end(),
                    [](const LocalProcess* process) { return process->status != kExitTryAgain; });
    if (!given_.replace || is_ending || !all_are_causes) return false;
    bool can_any = false;
    for (LocalProcess& process : processes_) {
      if (process.status == 0) return false;
      can_any = process.CanGoOn() || can_any;
    }
    return can_any;
  }

  void EndTheSilent() {
    for (LocalProcess& process : processes_) {
      if (!process.stopped_until.Expired()) continue;
      process.stopped_until = base::Deadline::Never();
      process.why_killed = "was stopped for too long and was killed";
      kill(-process.pid, SIGKILL);
    }
  }

  void EndTheHanging() {
    if (!given_.find_hang || !next_look_.Expired()) return;
    next_look_ = base::Deadline::After(kBetweenLooks);
    if (reason_.has_value() || RunningPids().size() != processes_.size()) return;
    const std::optional<LocalProcesses::Hang> hang = given_.find_hang();
    // A single report may mean that this whole machine stood still.
    const int before = std::exchange(suspect_, hang.has_value() ? hang->rank : -1);
    if (!hang.has_value() || hang->rank != before || hang->rank >= std::ssize(processes_)) return;
    LocalProcess& process = processes_[static_cast<size_t>(hang->rank)];
    // That is then the reason.
    if (!process.stopped_until.IsNever() || !process.why_killed.empty()) return;
    process.why_killed = absl::StrCat("hung ", hang->where, " and was killed");
    kill(-process.pid, SIGKILL);
  }

  std::vector<pid_t> RunningPids() const {
    std::vector<pid_t> running;
    for (const LocalProcess& process : processes_) {
      if (!process.status.has_value()) running.push_back(process.pid);
    }
    return running;
  }

  void Disturb() {
    const std::vector<pid_t> running = RunningPids();
    if (running.size() == processes_.size()) given_.disturb(running);
  }

  // Sends a signal to each process and those that it has started.
  void Signal(int signal) {
    for (const LocalProcess& process : processes_) kill(-process.pid, signal);
  }

  // Called once one has failed: asks the others to end, and then kills them.
  void EndTheRest() {
    if (!reason_.has_value() || !next_.Expired()) return;
    for (LocalProcess& process : processes_) {
      if (!process.status.has_value()) process.was_told_to_end = true;
    }
    Signal(std::exchange(asked_, true) ? SIGKILL : SIGTERM);
    next_ = base::Deadline::After(kFromTermToKill);
  }

  // Returns the first that failed, or the one that it and others name as the cause.
  static const LocalProcess& FindCause(const std::vector<const LocalProcess*>& failed) {
    const LocalProcess* cause = failed.front();
    for (size_t step = 0; step < failed.size() && cause->err.has_value(); ++step) {
      const std::optional<int> blamed = BlamedIn(cause->err->last_line());
      const auto found = std::find_if(failed.begin(), failed.end(), [&](const LocalProcess* other) {
        return other->rank == blamed && other != cause;
      });
      if (found == failed.end()) break;
      cause = *found;
    }
    return *cause;
  }

  static std::string Describe(const LocalProcess& cause) {
    const int status = *cause.status;
    if (!cause.why_killed.empty()) return cause.why_killed;
    if (!cause.was_killed) return absl::StrCat("ended with status ", status);
    return absl::StrCat("was killed by signal ", status - 128, " (", strsignal(status - 128), ")");
  }

  // Returns whether a process's device is gone, by its own account.
  static bool HasLostDevice(const LocalProcess& process) {
    return process.status == kExitUnavailable && process.err.has_value() &&
           !BlamedIn(process.err->last_line()).has_value();
  }

  EndOfProcesses Conclude(const std::vector<const LocalProcess*>& failed) const {
    EndOfProcesses end{.was_stopped = was_stopped_};
    if (failed.empty()) {
      // Processes may have ended by a signal that was passed on.
      for (const LocalProcess& process : processes_)
        end.status = std::max(end.status, *process.status);
      return end;
    }
    const LocalProcess& cause = FindCause(failed);
    end.status = *cause.status;
    end.cause = absl::StrCat("rank ", cause.rank, " ", Describe(cause));
    if (!given_.log_dir.empty()) {
      absl::StrAppend(&end.cause, "; see ", given_.log_dir, "/rank-", cause.rank, ".err");
    }
    if (end.status == kExitUnavailable) {
      for (const LocalProcess* const process : failed) {
        if (HasLostDevice(*process)) end.lost_devices.push_back(process->rank);
      }
      if (end.lost_devices.empty()) end.lost_devices.push_back(cause.rank);
    }
    return end;
  }

  const LocalProcesses& given_;
  Descriptor signals_;
  SaidErrors said_;
  std::vector<LocalProcess> processes_;
  std::vector<const LocalProcess*> lost_;          // those that have failed and are not handled yet
  std::optional<EndOfProcesses> replaced_;         // what was replaced the last time
  std::optional<EndOfProcesses> reason_;           // why all end
  std::vector<const LocalProcess*> failed_;        // afterwards: in the order in which they ended
  base::Deadline next_ = base::Deadline::Never();  // when the others are made to end
  base::Deadline next_look_ = base::Deadline::After(kBetweenLooks);  // for a rank that hangs
  int suspect_ = -1;  // the rank that hung at the last check, if any
  bool asked_ = false, was_stopped_ = false;
};

}  // namespace

absl::StatusOr<EndOfProcesses> RunLocalProcesses(const LocalProcesses& processes) {
  return Group(processes).Run();
}

absl::StatusOr<std::string> OwnProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return self.string();
  return absl::InternalError(absl::StrCat("cannot find this program: ", error.message()));
}

}  // namespace stagecoach::tools
