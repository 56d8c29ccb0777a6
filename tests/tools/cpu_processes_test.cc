// Training in one process per CPU device, over TCP.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"
#include "tests/tools/launched_run.h"

namespace stagecoach::tools {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Four gradient blocks, so that up to four replicas give the same bits.
Arguments OnCpu(const Arguments& more) {
  return Joined(
      {"train", "--data", "synthetic:256x16x4", "--layers", "4", "--width", "16", "--batch", "64",
       "--microbatches", "8", "--epochs", "2", "--gradient-blocks", "4", "--json"},
      more);
}

struct Mesh {
  int stages;
  int replicas;
  Arguments more = {};
};

class CpuProcesses : public ::testing::TestWithParam<Mesh> {};

TEST_P(CpuProcesses, GiveTheAnswerOfOneDevice) {
  const auto& [stages, replicas, more] = GetParam();
  const Arguments mesh =
      Joined({"--stages", absl::StrCat(stages), "--replicas", absl::StrCat(replicas)}, more);
  const Finished launched =
      RunStagecoach(Joined({"launch", "--processes", absl::StrCat(stages * replicas), "--"},
                           OnCpu(Joined(mesh, Deadline()))));
  ASSERT_EQ(launched.exit_status, 0) << launched.err;
  // What clips the norm clips it here.
  const bool clips = !more.empty() && more.front() == "--clip-norm";
  const Finished one = RunStagecoach(OnCpu(Joined({"--stages", "1"}, clips ? more : Arguments())));
  ASSERT_EQ(one.exit_status, 0) << one.err;
  const nlohmann::json end = launched.Events().back(), expected = one.Events().back();
  for (const char* name : {"steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(end[name], expected[name]) << name;
  }
  ASSERT_EQ(end["devices"].size(), static_cast<size_t>(stages * replicas));
  for (const nlohmann::json& device : end["devices"]) {
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CpuProcesses,
    ::testing::Values(Mesh{4, 1}, Mesh{1, 4}, Mesh{2, 2, {"--clip-norm", "0.05"}},
                      Mesh{2, 4, {"--shard-optimizer"}}, Mesh{2, 2, {"--schedule", "zb-v"}}),
    [](const ::testing::TestParamInfo<Mesh>& tested) {
      const std::string more = absl::StrJoin(tested.param.more, "_");
      return absl::StrCat("Stages", tested.param.stages, "Replicas", tested.param.replicas,
                          absl::StrReplaceAll(more, {{"-", ""}, {".", ""}}));
    });

// Two stages of two replicas, all of which train for ever.
std::vector<std::unique_ptr<Child>> StartFour(const Arguments& deadline) {
  std::vector<std::unique_ptr<Child>> children =
      Start(4, At(4, TcpPlace()),
            Same(Joined(OnCpu({"--stages", "2", "--replicas", "2"}),
                        Joined({"--epochs", "1000000"}, deadline))));
  EXPECT_TRUE(children[0]->WaitForOutput("\"event\":\"epoch\""));
  return children;
}

class CpuProcessOfRank : public ::testing::TestWithParam<size_t> {};

TEST_P(CpuProcessOfRank, EndsTheOthersIfItIsKilled) {
  const auto children = StartFour(Deadline());
  children[GetParam()]->Signal(SIGKILL);
  for (size_t rank = 0; rank < children.size(); ++rank) {
    if (rank == GetParam()) continue;
    ExpectError(children[rank]->Wait(), AnyOf(kStatusInternal, kStatusUnavailable),
                ContainsRegex("killed|is gone|has failed"));
  }
}

TEST_P(CpuProcessOfRank, EndsTheOthersAtTheDeadlineIfItIsStopped) {
  const auto children = StartFour({"--deadline", "3"});
  children[GetParam()]->Signal(SIGSTOP);
  ASSERT_TRUE(children[GetParam()]->WaitUntilStopped());
  const absl::Time stopped = absl::Now();
  for (size_t rank = 0; rank < children.size(); ++rank) {
    if (rank == GetParam()) continue;
    ExpectError(children[rank]->Wait(),
                AnyOf(kStatusInternal, kStatusUnavailable, kStatusBadConfiguration),
                ContainsRegex("timed out|in time|does not answer|has failed"));
  }
  EXPECT_LT(absl::Now() - stopped, absl::Seconds(3 + 2 + 5));  // 5 for a busy machine
}

INSTANTIATE_TEST_SUITE_P(Any, CpuProcessOfRank, ::testing::Values(0, 1, 3),
                         ::testing::PrintToStringParamName());

TEST(CpuProcessesThatDiffer, AreRefusedByAll) {
  const std::vector<Finished> all = Launch(2, At(2, TcpPlace()), [](int rank) {
    return OnCpu({"--stages", "1", "--replicas", "2", "--seed", absl::StrCat(rank)});
  });
  for (const Finished& process : all) {
    ExpectError(process, kStatusBadConfiguration, HasSubstr("rank 1 does not train the same"));
  }
}

}  // namespace
}  // namespace stagecoach::tools
