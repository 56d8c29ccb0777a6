// Training on two hosts: network namespaces with addresses of their own and a cable between them.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"
#include "tests/tools/launch/launched_run.h"

namespace stagecoach::tools {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;

bool Ip(const std::string& arguments) {
  return std::system(absl::StrCat("ip ", arguments, " > /dev/null 2>&1").c_str()) == 0;
}

// The first two of four ranks are on host 0, the others on host 1.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int host = 0; host < 2; ++host) {
      if (!Ip(absl::StrCat("netns add ", Name(host)))) {
        GTEST_SKIP() << "this user may not make network namespaces with ip";
      }
    }
    ASSERT_TRUE(Ip(absl::StrCat("link add ", Cable(0), " netns ", Name(0), " type veth peer name ",
                                Cable(1), " netns ", Name(1))));
    for (int host = 0; host < 2; ++host) {
      const std::string in = absl::StrCat("-n ", Name(host), " ");
      ASSERT_TRUE(Ip(absl::StrCat(in, "addr add 10.77.0.", host + 1, "/24 dev ", Cable(host))));
      ASSERT_TRUE(Ip(absl::StrCat(in, "link set ", Cable(host), " up")));
      ASSERT_TRUE(Ip(absl::StrCat(in, "link set lo up")));
    }
  }
  ~TwoHosts() override {
    for (int host = 0; host < 2; ++host) Ip(absl::StrCat("netns del ", Name(host)));
  }

  static std::vector<std::unique_ptr<Child>> StartFour(const Arguments& more) {
    const int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    std::vector<std::unique_ptr<Child>> children;
    for (int rank = 0; rank < 4; ++rank) {
      Enter(absl::StrCat("/run/netns/", Name(rank / 2)));
      const VariablesOf place = [rank](int) { return At(4, "tcp://10.77.0.1:29400")(rank); };
      children.push_back(std::move(Start(1, place, Same(OnCpu(more)))[0]));
    }
    EXPECT_EQ(setns(own, CLONE_NEWNET), 0);
    close(own);
    return children;
  }

  static Arguments OnCpu(const Arguments& more) {
    return Joined(
        {"train", "--data", "synthetic:256x16x4", "--layers", "4", "--width", "16",
         "--global-batch-size", "64", "--micro-batches", "8", "--gradient-blocks", "4", "--json"},
        more);
  }
  static void CutTheCable() {
    EXPECT_TRUE(Ip(absl::StrCat("-n ", Name(0), " link set ", Cable(0), " down")));
  }

 private:
  static std::string Name(int host) { return absl::StrCat("stagecoach", getpid(), "h", host); }
  static std::string Cable(int host) { return absl::StrCat("cable", host); }
  static void Enter(const std::string& space) {
    const int file = open(space.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(setns(file, CLONE_NEWNET), 0) << space;
    close(file);
  }
};

TEST_F(TwoHosts, GiveTheAnswerOfOne) {
  const std::vector<Finished> all = WaitForAll(
      StartFour(Joined({"--epochs", "2", "--stages", "2", "--replicas", "2"}, Deadline())));
  ExpectSuccess(all);
  const Finished one = RunStagecoach(OnCpu({"--epochs", "2", "--stages", "1"}));
  for (const char* name : {"step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(all[0].Events().back()[name], one.Events().back()[name]) << name;
  }
}

// Neither end is told about the cut. Ranks on rank 0's host miss the others, and those miss its
// store.
TEST_F(TwoHosts, EndAtTheDeadlineIfTheCableIsCut) {
  const auto children =
      StartFour({"--epochs", "1000000", "--stages", "2", "--replicas", "2", "--timeout", "3"});
  ASSERT_TRUE(children[0]->WaitForOutput("\"event\":\"epoch\""));
  CutTheCable();
  for (const Finished& process : WaitForAll(children)) {
    ExpectError(
        process, kStatusTryAgain,
        ContainsRegex("rank 2 \\(stage 1, replica 0\\), rank 3 \\(stage 1, replica 1\\) timed out|"
                      "rank 0, which keeps the rendezvous, does not answer|"
                      "ranks 2, 3 of 4 did not arrive in time"));
  }
}

}  // namespace
}  // namespace stagecoach::tools
