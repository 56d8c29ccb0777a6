// A run of several processes, as a user sees it. GPUs are emulated (tests/testing/cuda/stand_in.h).
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::testing::IsEmpty;
using ::testing::StartsWith;

using Arguments = std::vector<std::string>;

constexpr int kStopped = 130;

int FreePort() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  STAGECOACH_CHECK(bind(socket, generic, bytes) == 0, "bind failed");
  STAGECOACH_CHECK(getsockname(socket, generic, &bytes) == 0, "getsockname failed");
  close(socket);
  return ntohs(address.sin_port);
}

// `train` in so many processes, each of which sees `gpus` emulated GPUs.
class Processes {
 public:
  Processes(int ranks, int gpus, const Arguments& more) {
    const ScopedVariable library("STAGECOACH_CUDA_LIBRARY", STAGECOACH_EMULATED_CUDA);
    const ScopedVariable stand_in("STAGECOACH_CUDA_STAND_IN", absl::StrCat("gpus=", gpus));
    const ScopedVariable cache("XDG_CACHE_HOME", engine::TestDirectory());
    const ScopedVariable place("STAGECOACH_RENDEZVOUS",
                               absl::StrCat("tcp://127.0.0.1:", FreePort()));
    const ScopedVariable size("STAGECOACH_RANKS", absl::StrCat(ranks));
    Arguments arguments = {
        "train",      "--data", "synthetic:256x16x4", "--layers", "3",        "--width", "16",
        "--batch",    "32",     "--epochs",           "1",        "--device", "cuda",    "--json",
        "--deadline", "200"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    for (int rank = 0; rank < ranks; ++rank) {
      const ScopedVariable own("STAGECOACH_RANK", absl::StrCat(rank));
      children_.push_back(std::make_unique<Child>(arguments));
    }
  }

  Child& of(int rank) { return *children_[static_cast<size_t>(rank)]; }
  std::vector<Finished> Wait() {
    std::vector<Finished> finished;
    for (const auto& child : children_) finished.push_back(child->Wait());
    return finished;
  }

 private:
  std::vector<std::unique_ptr<Child>> children_;
};

const Arguments kForHours = {"--epochs", "1000000"};

TEST(Processes, AreReportedAsOneRunByRankZero) {
  const std::vector<Finished> runs = Processes(2, 2, {}).Wait();
  for (const Finished& run : runs) {
    EXPECT_EQ(run.exit_status, 0) << run.err;
    EXPECT_THAT(run.err, IsEmpty());
  }
  EXPECT_THAT(runs[1].out, IsEmpty());
  const nlohmann::json end = runs[0].Events().back();
  ASSERT_EQ(end["devices"].size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    const nlohmann::json& device = end["devices"][static_cast<size_t>(rank)];
    EXPECT_EQ(device["device"], absl::StrCat("cuda:", rank));
    EXPECT_EQ(device["stage"], rank);
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
    EXPECT_GT(device["busy"], 0.0);
  }
}

TEST(Processes, TakeTheOnlyGpuThatTheySee) {
  for (const Finished& run : Processes(2, 1, {}).Wait()) EXPECT_EQ(run.exit_status, 0) << run.err;
}

TEST(Processes, AreNotMoreThanTheGpusOfAHost) {
  const std::vector<Finished> runs = Processes(3, 2, {}).Wait();
  EXPECT_EQ(runs[2].exit_status, 69);
  EXPECT_THAT(runs[2].err, StartsWith("stagecoach train: rank 2: local rank 2 takes GPU 2"));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(runs[static_cast<size_t>(rank)].err,
                StartsWith(absl::StrCat("stagecoach train: rank ", rank, ": rank 2 has failed: ")));
  }
}

// A signal to the process of rank `asked`.
void ExpectAllStopWithASummary(int signal, int asked) {
  Processes run(2, 2, kForHours);
  ASSERT_TRUE(run.of(0).WaitForOutput("\"event\":\"epoch\""));
  run.of(asked).Signal(signal);
  const std::vector<Finished> ends = run.Wait();
  for (const Finished& end : ends) {
    EXPECT_EQ(end.exit_status, kStopped) << end.err;
    EXPECT_THAT(end.err, IsEmpty());
  }
  const nlohmann::json summary = ends[0].Events().back();
  EXPECT_EQ(summary["event"], "end");
  EXPECT_EQ(summary["stopped"], true);
  EXPECT_EQ(summary["devices"].size(), 2);
}

TEST(Processes, AllStopWhenRankZeroIsInterrupted) { ExpectAllStopWithASummary(SIGINT, 0); }
TEST(Processes, AllStopWhenAnotherIsTerminated) { ExpectAllStopWithASummary(SIGTERM, 1); }

}  // namespace
}  // namespace stagecoach::tools
