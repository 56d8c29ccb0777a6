#ifndef STAGECOACH_TESTS_ENGINE_COMM_RENDEZVOUS_FIXTURE_H_
#define STAGECOACH_TESTS_ENGINE_COMM_RENDEZVOUS_FIXTURE_H_

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/deadline.h"
#include "engine/comm/free_port.h"
#include "engine/comm/launch.h"
#include "engine/comm/rendezvous.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

// Ranks that are threads or processes, and the places where they meet.
namespace stagecoach::engine {

// The first never passes if all goes well; the second is for what must not happen.
inline constexpr absl::Duration kLong = absl::Seconds(60);
inline constexpr absl::Duration kShort = absl::Milliseconds(100);
inline base::Deadline Soon() { return base::Deadline::After(kLong); }
inline base::Deadline Short() { return base::Deadline::After(kShort); }

inline std::string NewFolder() {
  std::string name = ::testing::TempDir() + "/rendezvousXXXXXX";
  STAGECOACH_CHECK(mkdtemp(name.data()) != nullptr, "mkdtemp failed");
  return name;
}

// A rank that is a process. A failed expectation makes it fail. Must be started while this process
// has one thread.
class Process {
 public:
  explicit Process(const std::function<void()>& body) : pid_(fork()) {
    STAGECOACH_CHECK(pid_ >= 0, "fork failed");
    if (pid_ != 0) return;
    alarm(100);
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ > 0) Kill();
  }

  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  bool Succeeds() {
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
};

// A pipe through which a process says that it has reached some point.
class Signal {
 public:
  Signal() { STAGECOACH_CHECK(pipe(ends_) == 0, "pipe failed"); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Send() const { STAGECOACH_CHECK(write(ends_[1], "x", 1) == 1, "write failed"); }
  void Await() const {
    char byte;
    STAGECOACH_CHECK(read(ends_[0], &byte, 1) == 1, "read failed");
  }

 private:
  int ends_[2];
};

enum class Place { kFile, kTcp };

class RendezvousTest : public ::testing::TestWithParam<Place> {
 protected:
  explicit RendezvousTest(Place place)
      : folder_(NewFolder()),
        place_(place == Place::kFile ? "file:" + folder_
                                     : absl::StrCat("tcp://127.0.0.1:", port_.number())) {}
  RendezvousTest() : RendezvousTest(GetParam()) {}
  ~RendezvousTest() override { std::filesystem::remove_all(folder_); }

  Launch LaunchOf(int rank, int ranks, const std::string& id = "job") const {
    return {.rank = rank,
            .ranks = ranks,
            .local_rank = rank,
            .id = id,
            .rendezvous = place_,
            .launcher = "test"};
  }

  absl::StatusOr<std::unique_ptr<Rendezvous>> Connect(int rank, int ranks) const {
    return ConnectRendezvous(LaunchOf(rank, ranks), kLong);
  }

  // Runs a thread per rank.
  void ForEachRank(int ranks, const std::function<void(Rendezvous&)>& body) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([this, rank, ranks, &body] {
        auto rendezvous = Connect(rank, ranks);
        ASSERT_OK(rendezvous);
        body(**rendezvous);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  const FreePort port_ = FreePort::Take().value();
  std::string folder_;
  std::string place_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_COMM_RENDEZVOUS_FIXTURE_H_
