#include "tools/stagecoach/launch/local_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/stagecoach/terminal/messages.h"

namespace stagecoach::tools {
namespace {

using engine::Descriptor;

constexpr int kCannotExecute = 127;

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

// Runs in the new process; does not return.
struct Streams {
  Descriptor in, out, err, supervisor;
};
[[noreturn]] void Execute(const LocalProcesses& all, int rank, pid_t parent,
                          const Streams& streams) {
  // With a group of its own, what the terminal sends to this one's group is passed on once.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotExecute);
  dup2(streams.in.get(), STDIN_FILENO);
  dup2(streams.out.get(), STDOUT_FILENO);
  dup2(streams.err.get(), STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGXFSZ, SIG_DFL);
  for (const auto& [name, value] : all.variables(rank)) setenv(name.c_str(), value.c_str(), 1);
  if (streams.supervisor.valid()) {
    fcntl(streams.supervisor.get(), F_SETFD, 0);
    setenv("STAGECOACH_SUPERVISOR", absl::StrCat(streams.supervisor.get()).c_str(), 1);
  }
  std::vector<char*> argv;
  for (const std::string& word : all.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  std::fprintf(stderr, "cannot run %s: %s\n", Printable(argv[0]).c_str(), std::strerror(error));
  _exit(kCannotExecute);
}

}  // namespace

bool LocalProcess::CanGoOn() {
  char buffer[64];
  while (supervisor.valid() && recv(supervisor.get(), buffer, sizeof(buffer), MSG_DONTWAIT) > 0) {
    said_it_can_go_on = true;
  }
  return said_it_can_go_on && !status.has_value();
}

void LocalProcess::EndAtOnce() {
  kill(-pid, SIGKILL);
  if (!status.has_value()) waitpid(pid, nullptr, 0);
  Drain();
}

void LocalProcess::Drain() {
  for (std::optional<Relay>* const relay : {&out, &err}) {
    if (relay->has_value()) (*relay)->Drain();
  }
}

absl::StatusOr<LocalProcess> StartLocalProcess(const LocalProcesses& all, int rank,
                                               SaidErrors* said) {
  LocalProcess process{.rank = rank};
  Streams streams = {.in = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC))};
  if (all.log_dir.empty()) {
    ASSIGN_OR_RETURN(Pipe out_pipe, MakePipe());
    ASSIGN_OR_RETURN(Pipe err_pipe, MakePipe());
    streams.out = std::move(out_pipe.write);
    streams.err = std::move(err_pipe.write);
    const std::string prefix = absl::StrCat("[", rank, "] ");
    process.out.emplace(std::move(out_pipe.read), stdout, rank == 0 ? "" : prefix);
    process.err.emplace(
        std::move(err_pipe.read), stderr, prefix,
        [said, rank](const std::string& line) { return said->IsAnother(rank, line); });
  } else {
    const std::string path = absl::StrCat(all.log_dir, "/rank-", rank);
    ASSIGN_OR_RETURN(streams.out, MakeFile(path + ".out", all.appends_logs));
    ASSIGN_OR_RETURN(streams.err, MakeFile(path + ".err", all.appends_logs));
  }
  if (all.replace) {
    ASSIGN_OR_RETURN(SocketPair sockets, MakeSockets());
    process.supervisor = std::move(sockets.own);
    streams.supervisor = std::move(sockets.of_process);
  }
  std::fflush(nullptr);
  const pid_t parent = getpid();
  process.pid = fork();
  if (process.pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the process of rank ", rank, ": ", std::strerror(errno),
                     "; see the limits of processes and memory (ulimit -u, ulimit -v, pids.max)"));
  }
  if (process.pid == 0) Execute(all, rank, parent, streams);
  setpgid(process.pid, process.pid);  // whichever of the two comes first
  return process;
}

}  // namespace stagecoach::tools
