// Tests ranks of NCCL's stand-in in processes of their own.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/nccl/rank.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::Each;

// ---- The process of a rank: this program again, which reads commands, one per line, and answers
// with one line each. Between commands it does nothing.

// SIGALRM kills a process that hangs after this time.
constexpr unsigned kLongestLifeSeconds = 240;

std::string Text(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "success";
    case ncclInProgress:
      return "in progress";
    case ncclSystemError:
      return "system error";
    case ncclRemoteError:
      return "remote error";
    default:
      return ncclGetErrorString(result);
  }
}

int NumberIn(const std::string& text) {
  int number = -1;
  STAGECOACH_CHECK(absl::SimpleAtoi(text, &number), text);
  return number;
}

// Waits however long it takes, unlike StateAtLast.
std::string Settled(Rank& self) {
  while (self.State() == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return Text(self.State());
}

// Posts one group of "send:PEER:BYTES" or "receive:PEER:BYTES".
std::string Post(Rank& self, const std::vector<std::string>& transfers) {
  if (const ncclResult_t started = ncclGroupStart(); started != ncclSuccess) return Text(started);
  for (const std::string& transfer : transfers) {
    const std::vector<std::string> words = absl::StrSplit(transfer, ':');
    const int peer = NumberIn(words[1]);
    const auto bytes = static_cast<size_t>(NumberIn(words[2]));
    const ncclResult_t posted =
        words[0] == "send" ? self.Send(peer, bytes) : self.Receive(peer, bytes);
    if (posted != ncclSuccess) return Text(posted);
  }
  if (const ncclResult_t ended = ncclGroupEnd(); ended != ncclInProgress) return Text(ended);
  return Settled(self);
}

// Returns "done", or the error that prevents it.
std::string WaitForStream(Rank& self) {
  while (cudaStreamQuery(self.stream) == cudaErrorNotReady) {
    if (self.communicator != nullptr && self.State() != ncclSuccess) return Text(self.State());
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return "done";
}

std::string Received(Rank& self, int bytes) {
  const std::vector<int> values = self.Received(static_cast<size_t>(bytes));
  for (const int value : values) {
    if (value != values.front()) return absl::StrCat(values.front(), " and ", value);
  }
  return absl::StrCat(values.front());
}

std::string Perform(Rank& self, const std::vector<std::string>& words) {
  const std::string& command = words[0];
  if (command == "new_id") {
    const ncclUniqueId id = NewId();
    return absl::Base64Escape({id.internal, sizeof(id.internal)});
  }
  if (command == "init") {
    std::string bytes;
    if (!absl::Base64Unescape(words[2], &bytes)) return "no id";
    ncclUniqueId id;
    bytes.copy(id.internal, sizeof(id.internal));
    return Text(self.Init(NumberIn(words[1]), id));
  }
  if (command == "settled") return Settled(self);
  if (command == "post") return Post(self, {words.begin() + 1, words.end()});
  if (command == "is_done") return self.IsDone() ? "yes" : "no";
  if (command == "wait") return WaitForStream(self);
  if (command == "received") return Received(self, NumberIn(words[1]));
  if (command == "abort") return Text(ncclCommAbort(std::exchange(self.communicator, nullptr)));
  return "no such command: " + command;
}

int RunRank(int number) {
  alarm(kLongestLifeSeconds);
  Reset({.seed = static_cast<uint64_t>(number) + 1, .delay = 0.3});
  {
    // All have the same GPU, each the one of its own process.
    Rank self(number, 0);
    for (std::string line; std::getline(std::cin, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      std::cout << Perform(self, words) << std::endl;
    }
  }
  return live().total() == 0 ? 0 : 1;
}

// ---- The tests.

class Process {
 public:
  explicit Process(int rank) {
    int ends[2];
    STAGECOACH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
    std::string number = absl::StrCat(rank);
    std::string arguments[] = {"nccl_processes_test", "--rank", number};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    pid_ = fork();
    STAGECOACH_CHECK(pid_ >= 0, "fork failed");
    if (pid_ == 0) {
      dup2(ends[1], STDIN_FILENO);
      dup2(ends[1], STDOUT_FILENO);
      execv("/proc/self/exe", argv);
      _exit(127);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Process() {
    if (pid_ > 0) Kill();
    close(socket_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Tell(const std::string& command) {
    const std::string line = command + "\n";
    // If the process has ended, that shows when it should answer.
    static_cast<void>(!send(socket_, line.data(), line.size(), MSG_NOSIGNAL));
  }
  std::string Answer() {
    std::string line;
    for (char c = 0; read(socket_, &c, 1) == 1;) {
      if (c == '\n') return line;
      line += c;
    }
    return line + "(has ended)";
  }
  std::string Ask(const std::string& command) {
    Tell(command);
    return Answer();
  }

  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  // Kills the process as its launcher sees it before waiting for it.
  void KillAndNotWait() { kill(pid_, SIGKILL); }
  // Returns the exit status after a clean end.
  int End() {
    shutdown(socket_, SHUT_WR);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

class NcclProcesses : public ::testing::Test {
 protected:
  Process& rank(size_t number) { return *processes_[number]; }

  // Asks all ranks, which work on it at the same time.
  std::vector<std::string> AskAll(const std::string& command) {
    for (const auto& process : processes_) process->Tell(command);
    std::vector<std::string> answers;
    for (const auto& process : processes_) answers.push_back(process->Answer());
    return answers;
  }
  void Make(int ranks) {
    for (int r = 0; r < ranks; ++r) processes_.push_back(std::make_unique<Process>(r));
    // The id comes from a process that is none of them, as with torchrun's agent.
    const ncclUniqueId id = NewId();
    id_ = absl::Base64Escape({id.internal, sizeof(id.internal)});
  }
  std::string Init(size_t number, size_t ranks) {
    return rank(number).Ask(absl::StrCat("init ", ranks, " ", id_));
  }
  // Starts ranks that are connected, all to all.
  void Start(size_t ranks) {
    Make(static_cast<int>(ranks));
    for (size_t r = 0; r < ranks; ++r) EXPECT_EQ(Init(r, ranks), "in progress");
    EXPECT_THAT(AskAll("settled"), Each("success"));
    for (size_t self = 0; self < ranks; ++self) {
      std::string command = "post";
      for (size_t peer = 0; peer < ranks; ++peer) {
        if (peer != self) absl::StrAppend(&command, " send:", peer, ":1 receive:", peer, ":1");
      }
      rank(self).Tell(command);
    }
    for (const auto& process : processes_) EXPECT_EQ(process->Answer(), "success");
    EXPECT_THAT(AskAll("wait"), Each("done"));
  }
  // Expects that none is done, however often all are asked in turn.
  void ExpectNeverDone() {
    for (int i = 0; i < 3; ++i) EXPECT_THAT(AskAll("is_done"), Each("no"));
  }

  std::vector<std::unique_ptr<Process>> processes_;
  std::string id_;
};

TEST_F(NcclProcesses, ExchangeInOneGroup) {
  Start(2);
  for (const size_t bytes : {size_t{1}, Rank::kBytes}) {
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(rank(r).Ask(
                    absl::StrCat("post send:", 1 - r, ":", bytes, " receive:", 1 - r, ":", bytes)),
                "success");
    }
    EXPECT_THAT(AskAll("wait"), Each("done"));
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(rank(r).Ask(absl::StrCat("received ", bytes)), absl::StrCat(0xA0 + 1 - r));
    }
  }
}

TEST_F(NcclProcesses, PassDataAroundARing) {
  Start(4);
  for (size_t r = 0; r < 4; ++r) {
    for (int round = 0; round < 10; ++round) {
      EXPECT_EQ(
          rank(r).Ask(absl::StrCat("post send:", (r + 1) % 4, ":64 receive:", (r + 3) % 4, ":64")),
          "success");
    }
  }
  EXPECT_THAT(AskAll("wait"), Each("done"));
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(rank(r).Ask("received 64"), absl::StrCat(0xA0 + (r + 3) % 4));
  }
}

// Each rank sends before it receives: a deadlock, however little is sent.
TEST_F(NcclProcesses, BufferNothing) {
  Start(2);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(rank(r).Ask(absl::StrCat("post send:", 1 - r, ":1")), "success");
    EXPECT_EQ(rank(r).Ask(absl::StrCat("post receive:", 1 - r, ":1")), "success");
  }
  ExpectNeverDone();
}

TEST_F(NcclProcesses, OneOrderOnBothSidesIsNoDeadlock) {
  Start(2);
  EXPECT_EQ(rank(0).Ask("post send:1:100"), "success");
  EXPECT_EQ(rank(0).Ask("post receive:1:100"), "success");
  EXPECT_EQ(rank(1).Ask("post receive:0:100"), "success");
  EXPECT_EQ(rank(1).Ask("post send:0:100"), "success");
  EXPECT_THAT(AskAll("wait"), Each("done"));
}

TEST_F(NcclProcesses, SendWaitsUntilTheReceiverIsThere) {
  Start(2);
  EXPECT_EQ(rank(0).Ask("post send:1:1"), "success");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(rank(0).Ask("is_done"), "no");
    EXPECT_EQ(rank(1).Ask("is_done"), "yes");  // it has nothing to do
  }
  EXPECT_EQ(rank(1).Ask("post receive:0:1"), "success");
  EXPECT_THAT(AskAll("wait"), Each("done"));
}

TEST_F(NcclProcesses, TransfersOfOneGroupAreDoneEachByItself) {
  Start(3);
  EXPECT_EQ(rank(0).Ask("post send:2:4 send:1:4"), "success");
  EXPECT_EQ(rank(1).Ask("post receive:0:4"), "success");
  rank(0).Tell("wait");
  EXPECT_EQ(rank(1).Ask("wait"), "done");
  EXPECT_EQ(rank(1).Ask("received 4"), absl::StrCat(0xA0));
  EXPECT_EQ(rank(2).Ask("post receive:0:4"), "success");
  EXPECT_EQ(rank(2).Ask("wait"), "done");
  EXPECT_EQ(rank(0).Answer(), "done");
}

// A rank that waits for nothing may stop making calls: the others have what it has sent.
TEST_F(NcclProcesses, NeedNothingOfARankWhoseStreamIsDone) {
  Start(2);
  EXPECT_EQ(rank(0).Ask("post send:1:200"), "success");
  EXPECT_EQ(rank(1).Ask("post receive:0:200"), "success");
  rank(1).Tell("wait");
  EXPECT_EQ(rank(0).Ask("wait"), "done");
  EXPECT_EQ(rank(1).Answer(), "done");
}

TEST_F(NcclProcesses, SeeThatOneWasKilled) {
  Start(3);
  EXPECT_EQ(rank(0).Ask("post receive:2:8"), "success");
  EXPECT_EQ(rank(2).Ask("settled"), "success");
  rank(2).KillAndNotWait();
  EXPECT_EQ(rank(0).Ask("wait"), "remote error");
  EXPECT_EQ(rank(1).Ask("post send:2:8"), "remote error");
  // Only an abort ends the group.
  EXPECT_EQ(rank(0).Ask("is_done"), "no");
  EXPECT_EQ(rank(0).Ask("abort"), "success");
  EXPECT_EQ(rank(0).Ask("wait"), "done");
}

TEST_F(NcclProcesses, SeeThatOneWasKilledWhileTheyStart) {
  Make(3);
  for (size_t r = 0; r < 2; ++r) EXPECT_EQ(Init(r, 3), "in progress");
  rank(1).Kill();
  EXPECT_EQ(rank(0).Ask("settled"), "remote error");
}

TEST_F(NcclProcesses, SeeThatOneWasKilledInTheMiddleOfATransfer) {
  Start(2);
  EXPECT_EQ(rank(0).Ask(absl::StrCat("post send:1:", Rank::kBytes)), "success");
  EXPECT_EQ(rank(1).Ask(absl::StrCat("post receive:0:", Rank::kBytes)), "success");
  // Each of these gets as far as it can without the other, which idles meanwhile.
  EXPECT_EQ(rank(1).Ask("is_done"), "no");
  EXPECT_EQ(rank(0).Ask("is_done"), "no");
  EXPECT_EQ(rank(1).Ask("is_done"), "no");
  rank(1).Kill();
  EXPECT_EQ(rank(0).Ask("wait"), "remote error");
}

TEST_F(NcclProcesses, AbortEndsItsOwnGroupsOnly) {
  Start(2);
  EXPECT_EQ(rank(0).Ask("post receive:1:8"), "success");
  EXPECT_EQ(rank(0).Ask("is_done"), "no");
  EXPECT_EQ(rank(0).Ask("abort"), "success");
  EXPECT_EQ(rank(0).Ask("wait"), "done");
  EXPECT_EQ(rank(0).End(), 0);
  // The others do not treat this as a death, even when its process ends.
  EXPECT_EQ(rank(1).Ask("post send:0:8"), "success");
  EXPECT_EQ(rank(1).Ask("is_done"), "no");
  EXPECT_EQ(rank(1).Ask("settled"), "success");
}

TEST_F(NcclProcesses, EndWithNothingLeft) {
  Start(2);
  EXPECT_THAT(AskAll("abort"), Each("success"));
  EXPECT_EQ(rank(0).End(), 0);
  EXPECT_EQ(rank(1).End(), 0);
}

TEST_F(NcclProcesses, CannotStartWithoutTheOneThatMadeTheId) {
  Make(2);
  id_ = rank(0).Ask("new_id");
  EXPECT_EQ(Init(0, 2), "in progress");
  rank(0).Kill();
  EXPECT_EQ(Init(1, 2), "system error");
}

}  // namespace
}  // namespace stagecoach::testing::cuda

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--rank") {
    return stagecoach::testing::cuda::RunRank(std::atoi(argv[2]));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
