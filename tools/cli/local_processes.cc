#include "tools/cli/local_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/launch/socket.h"
#include "engine/launch/supervisor.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/relay.h"

namespace stagecoach::tools {
namespace {

using engine::Descriptor;

constexpr absl::Duration kFromTermToKill = absl::Seconds(2);
constexpr absl::Duration kBetweenDisturbances = absl::Milliseconds(5);
constexpr int kCannotExecute = 127;

struct Process {
  int rank = 0;
  pid_t pid = -1;
  std::optional<Relay> out, err;  // none where a file takes it
  Descriptor supervisor;          // to it, if it may be replaced (engine/launch/supervisor.h)
  bool can_go_on = false;         // if another one is
  std::optional<int> status;      // as a shell reports it, once it has ended
  bool was_told_to_end = false;   // by this program
  bool was_silent = false;        // and killed for it
  base::Deadline stopped_until = base::Deadline::Never();  // where it is stopped
};

void Drain(Process& process) {
  for (std::optional<Relay>* const relay : {&process.out, &process.err}) {
    if (relay->has_value()) (*relay)->Drain();
  }
}

struct Pipe {
  Descriptor read, write;
};

struct SocketPair {
  Descriptor own, of_process;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

absl::StatusOr<SocketPair> MakeSockets() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a socket");
  }
  return SocketPair{Descriptor(ends[0]), Descriptor(ends[1])};
}

absl::StatusOr<Descriptor> MakeFile(const std::string& path, bool appends) {
  const int how = appends ? O_APPEND : O_TRUNC;
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666));
  if (!file.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  return file;
}

// In the new process: does not return.
struct Streams {
  Descriptor in, out, err, supervisor;
};
[[noreturn]] void Execute(const LocalProcesses& all, int rank, pid_t parent,
                          const Streams& streams) {
  // A group of its own: what the terminal sends to this one's is passed on once.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotExecute);
  dup2(streams.in.get(), STDIN_FILENO);
  dup2(streams.out.get(), STDOUT_FILENO);
  dup2(streams.err.get(), STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const auto& [name, value] : all.variables(rank)) setenv(name.c_str(), value.c_str(), 1);
  if (streams.supervisor.valid()) {
    fcntl(streams.supervisor.get(), F_SETFD, 0);
    setenv("STAGECOACH_SUPERVISOR", absl::StrCat(streams.supervisor.get()).c_str(), 1);
  }
  std::vector<char*> argv;
  for (const std::string& word : all.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "cannot run %s: %s\n", argv[0], std::strerror(errno));
  _exit(kCannotExecute);
}

// The rank that a line says has failed: 2 in "rank 1: rank 2 has failed: no memory".
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
      ASSIGN_OR_RETURN(Process process, Start(rank));
      processes_.push_back(std::move(process));
    }
    while (IsRunning()) {
      RETURN_IF_ERROR(WaitForSomething());
      EndTheSilent();
      EndTheRest();
      if (given_.disturb && failed_.empty()) Disturb();
    }
    Signal(SIGKILL);  // what they have started themselves and left
    for (Process& process : processes_) Drain(process);
    return Conclude(failed_);
  }

 private:
  absl::Status CatchSignals() {
    sigset_t caught;
    sigemptyset(&caught);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&caught, signal);
    // Blocked from here on: the program ends when its processes have.
    sigprocmask(SIG_BLOCK, &caught, nullptr);
    signals_ = Descriptor(signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) return absl::ErrnoToStatus(errno, "cannot wait for signals");
    return absl::OkStatus();
  }

  absl::StatusOr<Process> Start(int rank) {
    Process process{.rank = rank};
    Streams streams = {.in = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC))};
    if (given_.log_dir.empty()) {
      ASSIGN_OR_RETURN(Pipe out_pipe, MakePipe());
      ASSIGN_OR_RETURN(Pipe err_pipe, MakePipe());
      streams.out = std::move(out_pipe.write);
      streams.err = std::move(err_pipe.write);
      const std::string prefix = absl::StrCat("[", rank, "] ");
      process.out.emplace(std::move(out_pipe.read), stdout, rank == 0 ? "" : prefix);
      process.err.emplace(std::move(err_pipe.read), stderr, prefix);
    } else {
      const std::string path = absl::StrCat(given_.log_dir, "/rank-", rank);
      ASSIGN_OR_RETURN(streams.out, MakeFile(path + ".out", given_.appends_logs));
      ASSIGN_OR_RETURN(streams.err, MakeFile(path + ".err", given_.appends_logs));
    }
    if (given_.replace) {
      ASSIGN_OR_RETURN(SocketPair sockets, MakeSockets());
      process.supervisor = std::move(sockets.own);
      streams.supervisor = std::move(sockets.of_process);
    }
    std::fflush(nullptr);
    const pid_t parent = getpid();
    process.pid = fork();
    if (process.pid < 0) return absl::ErrnoToStatus(errno, "cannot start a process");
    if (process.pid == 0) Execute(given_, rank, parent, streams);
    setpgid(process.pid, process.pid);  // whichever of the two comes first
    return process;
  }

  bool IsRunning() const {
    return std::any_of(processes_.begin(), processes_.end(),
                       [](const Process& process) { return !process.status.has_value(); });
  }

  absl::Status WaitForSomething() {
    std::vector<pollfd> polled = {{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
    std::vector<Relay*> relays;
    for (Process& process : processes_) {
      for (std::optional<Relay>* const relay : {&process.out, &process.err}) {
        if (!relay->has_value() || !(*relay)->from().valid()) continue;
        relays.push_back(&**relay);
        polled.push_back({.fd = (*relay)->from().get(), .events = POLLIN, .revents = 0});
      }
    }
    base::Deadline until = next_;
    for (const Process& process : processes_) until = Earlier(until, process.stopped_until);
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
      was_stopped_ = true;
      for (Process& process : processes_) process.was_told_to_end = true;
      Signal(static_cast<int>(info.ssi_signo));
    }
    for (Process& process : processes_) {
      int status = 0;
      constexpr int kAllChanges = WNOHANG | WUNTRACED | WCONTINUED;
      while (!process.status.has_value() && waitpid(process.pid, &status, kAllChanges) > 0) {
        HandleChange(process, status);
      }
    }
    return ReplaceLost();
  }

  void HandleChange(Process& process, int status) {
    if (WIFSTOPPED(status)) {
      process.stopped_until = base::Deadline::After(given_.silence);
      return;
    }
    process.stopped_until = base::Deadline::Never();
    if (WIFCONTINUED(status)) return;
    process.status = ShellStatus(status);
    if (*process.status != 0 && !process.was_told_to_end) lost_.push_back(&process);
  }

  // Those that have failed just now, if that may be; else all others end.
  absl::Status ReplaceLost() {
    if (lost_.empty()) return absl::OkStatus();
    const std::vector<const Process*> lost = std::exchange(lost_, {});
    std::optional<engine::Launch> next;
    if (MayReplace(lost)) next = given_.replace(Conclude(lost));
    if (!next.has_value()) {
      if (failed_.empty()) next_ = base::Deadline::After(given_.patience);
      failed_.insert(failed_.end(), lost.begin(), lost.end());
      for (Process& process : processes_) process.supervisor = Descriptor();
      return absl::OkStatus();
    }
    const std::string text = engine::Supervisor::ToText(*next);
    for (Process& process : processes_) {
      if (process.can_go_on && !process.status.has_value()) {
        send(process.supervisor.get(), text.data(), text.size(), MSG_NOSIGNAL);
        continue;
      }
      EndAtOnce(process);
      ASSIGN_OR_RETURN(process, Start(process.rank));
    }
    return absl::OkStatus();
  }

  // Whether some of the others can go on. Those that cannot yet are themselves replacements, which
  // are replaced as well.
  bool MayReplace(const std::vector<const Process*>& lost) {
    if (!given_.replace || !failed_.empty() || was_stopped_) return false;
    bool can_any = false;
    for (Process& process : processes_) {
      if (process.status == 0) return false;
      char buffer[64];
      while (recv(process.supervisor.get(), buffer, sizeof(buffer), MSG_DONTWAIT) > 0) {
        process.can_go_on = true;
      }
      can_any = can_any || (process.can_go_on && !process.status.has_value());
    }
    return can_any && std::all_of(lost.begin(), lost.end(), [](const Process* process) {
             return process->status != kExitTryAgain;
           });
  }

  static void EndAtOnce(Process& process) {
    kill(-process.pid, SIGKILL);
    if (!process.status.has_value()) waitpid(process.pid, nullptr, 0);
    Drain(process);
  }

  void EndTheSilent() {
    for (Process& process : processes_) {
      if (!process.stopped_until.Expired()) continue;
      process.stopped_until = base::Deadline::Never();
      process.was_silent = true;
      kill(-process.pid, SIGKILL);
    }
  }

  void Disturb() {
    std::vector<pid_t> running;
    for (const Process& process : processes_) {
      if (!process.status.has_value()) running.push_back(process.pid);
    }
    if (running.size() == processes_.size()) given_.disturb(running);
  }

  // To each process and those that it has started.
  void Signal(int signal) {
    for (const Process& process : processes_) kill(-process.pid, signal);
  }

  // Once one has failed: asks the others to end, and then makes them.
  void EndTheRest() {
    if (failed_.empty() || !next_.Expired()) return;
    for (Process& process : processes_) {
      if (!process.status.has_value()) process.was_told_to_end = true;
    }
    Signal(std::exchange(asked_, true) ? SIGKILL : SIGTERM);
    next_ = base::Deadline::After(kFromTermToKill);
  }

  // The first that failed, or the one that it and others name as the cause.
  static const Process& FindCause(const std::vector<const Process*>& failed) {
    const Process* cause = failed.front();
    for (size_t step = 0; step < failed.size() && cause->err.has_value(); ++step) {
      const std::optional<int> blamed = BlamedIn(cause->err->last_line());
      const auto found = std::find_if(failed.begin(), failed.end(), [&](const Process* other) {
        return other->rank == blamed && other != cause;
      });
      if (found == failed.end()) break;
      cause = *found;
    }
    return *cause;
  }

  static std::string Describe(const Process& cause) {
    const int status = *cause.status;
    if (cause.was_silent) return "was stopped for too long and was killed";
    if (status <= 128) return absl::StrCat("ended with status ", status);
    return absl::StrCat("was killed by signal ", status - 128, " (", strsignal(status - 128), ")");
  }

  // Whose device is gone, by its own account.
  static bool HasLostDevice(const Process& process) {
    return process.status == kExitUnavailable && process.err.has_value() &&
           !BlamedIn(process.err->last_line()).has_value();
  }

  EndOfProcesses Conclude(const std::vector<const Process*>& failed) const {
    EndOfProcesses end{.was_stopped = was_stopped_};
    if (failed.empty()) {
      // Of those that have ended by a signal that was passed on.
      for (const Process& process : processes_) end.status = std::max(end.status, *process.status);
      return end;
    }
    const Process& cause = FindCause(failed);
    end.status = *cause.status;
    end.cause = absl::StrCat("rank ", cause.rank, " ", Describe(cause));
    if (!given_.log_dir.empty()) {
      absl::StrAppend(&end.cause, "; see ", given_.log_dir, "/rank-", cause.rank, ".err");
    }
    if (end.status == kExitUnavailable) {
      const auto lost = std::count_if(failed.begin(), failed.end(), [](const Process* process) {
        return HasLostDevice(*process);
      });
      end.devices_lost = std::max(1, static_cast<int>(lost));
    }
    return end;
  }

  const LocalProcesses& given_;
  Descriptor signals_;
  std::vector<Process> processes_;
  std::vector<const Process*> lost_;               // have failed, and are not handled yet
  std::vector<const Process*> failed_;             // in the order in which they ended
  base::Deadline next_ = base::Deadline::Never();  // when the others are made to end
  bool asked_ = false, was_stopped_ = false;
};

}  // namespace

absl::StatusOr<EndOfProcesses> RunLocalProcesses(const LocalProcesses& processes) {
  return Group(processes).Run();
}

}  // namespace stagecoach::tools
