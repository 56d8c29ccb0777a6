// Training in one process per GPU.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/comm/free_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"
#include "tests/tools/launch/launched_run.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Returns the parts of the events that two runs must have in common.
nlohmann::json AnswerOf(const Finished& run) {
  nlohmann::json answer = nlohmann::json::array();
  for (nlohmann::json event : run.Events()) {
    if (event["event"] == "epoch") {
      for (const char* const varying : {"samples_per_second", "evaluation_seconds", "time"}) {
        event.erase(varying);
      }
      answer.push_back(std::move(event));
    } else if (event["event"] == "end") {
      for (const char* name : {"steps", "step_losses_hash", "parameters_hash"}) {
        answer.push_back(event.at(name));
      }
    }
  }
  return answer;
}

void ExpectTheAnswerOfOneProcess(const std::vector<Finished>& launched, const Arguments& more) {
  ExpectSuccess(launched);
  const Finished one = RunStagecoach(
      RankArguments(Joined({"--stages", absl::StrCat(launched.size()), "--json"}, more)));
  ASSERT_EQ(one.exit_status, 0) << one.err;
  const nlohmann::json expected = AnswerOf(one);
  ASSERT_EQ(expected.size(), 4);
  EXPECT_EQ(AnswerOf(launched[0]), expected);
}

// ---- Training.

struct TrainCase {
  int ranks;
  std::string schedule;
  Arguments more;
};

class LaunchedTrain : public ::testing::TestWithParam<TrainCase> {};

// The processes reach the products that have not been measured yet at the same time.
TEST_P(LaunchedTrain, GivesTheAnswerOfOneProcess) {
  const auto& [ranks, schedule, given] = GetParam();
  const CudaMachine machine("gpus=4");
  const Arguments more = Joined({"--schedule", schedule}, given);
  const std::vector<Finished> launched =
      Launch(ranks, At(ranks, FilePlace(machine)), Same(RankArguments(Joined(more, {"--json"}))));
  ExpectTheAnswerOfOneProcess(launched, more);
  for (int rank = 1; rank < ranks; ++rank) {
    EXPECT_THAT(launched[static_cast<size_t>(rank)].out, IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LaunchedTrain,
    ::testing::Values(TrainCase{2, "gpipe", {}}, TrainCase{2, "1f1b", {}},
                      TrainCase{2, "1f1b", {"--clip-norm", "0.05"}}, TrainCase{4, "gpipe", {}},
                      TrainCase{4, "gpipe", {"--clip-norm", "0.05"}}, TrainCase{4, "1f1b", {}},
                      TrainCase{4, "1f1b", {"--precision", "bf16"}},
                      TrainCase{2, "gpipe", {"--offload", "full", "--micro-batches", "8"}}),
    [](const ::testing::TestParamInfo<TrainCase>& tested) {
      std::string name = absl::StrCat(tested.param.ranks, "Ranks_", tested.param.schedule);
      if (!tested.param.more.empty()) {
        const std::string& first = tested.param.more[0];
        absl::StrAppend(&name, first == "--precision" ? "_bf16"
                               : first == "--offload" ? "_offloaded"
                                                      : "_clipped");
      }
      return name;
    });

TEST(LaunchedOverTcp, GivesTheAnswerOfOneProcess) {
  const CudaMachine machine("gpus=4");
  ExpectTheAnswerOfOneProcess(Launch(3, At(3, TcpPlace()), Same(RankArguments({"--json"}))), {});
}

TEST(LaunchedReport, IsRank0sAlone) {
  const CudaMachine machine("gpus=4");
  const std::vector<Finished> all = Launch(2, At(2, FilePlace(machine)), Same(RankArguments({})));
  ExpectSuccess(all);
  EXPECT_THAT(all[0].out, AllOf(HasSubstr("loss"), HasSubstr("predicted")));
  EXPECT_THAT(all[1].out, IsEmpty());
}

TEST(LaunchedReport, TellsOfTheDevicesOfAll) {
  const CudaMachine machine("gpus=2");
  const std::vector<Finished> all =
      Launch(2, At(2, FilePlace(machine)), Same(RankArguments({"--json"})));
  ExpectSuccess(all);
  const nlohmann::json end = all[0].Events().back();
  ASSERT_EQ(end["devices"].size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    const nlohmann::json& device = end["devices"][static_cast<size_t>(rank)];
    EXPECT_EQ(device["device"], absl::StrCat("cuda:", rank));
    EXPECT_EQ(device["stages"][0]["stage"], rank);
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
    EXPECT_GT(device["busy"], 0.0);
  }
}

TEST(LaunchedReport, SaysThatProcessorsDiffer) {
  const CudaMachine machine("gpus=4");
  const VariablesOf at = At(2, FilePlace(machine));
  const VariablesOf narrow = [&](int rank) {
    Variables variables = at(rank);
    if (rank == 1) variables.emplace_back("ONEDNN_MAX_CPU_ISA", "SSE41");
    return variables;
  };
  const std::vector<Finished> all = Launch(2, narrow, Same(RankArguments({"--device", "cpu"})));
  EXPECT_EQ(all[0].exit_status, 0) << all[0].err;
  EXPECT_THAT(WithoutWaits(all[0].err),
              AllOf(StartsWith("stagecoach: rank 1 computes with sse4.1, rank 0 with "),
                    EndsWith(": the bits will depend on which of them has which layers\n")));
  EXPECT_THAT(WithoutWaits(all[1].err), IsEmpty());
}

// Some launchers show each process only its own GPU.
TEST(LaunchedGpus, MayBeTheOnlyOneThatAProcessSees) {
  const CudaMachine machine("gpus=1");
  ExpectSuccess(Launch(2, At(2, FilePlace(machine)), Same(RankArguments({}))));
}

TEST(LaunchedPlace, IsLeftAsItWas) {
  const CudaMachine machine("gpus=4");
  ExpectSuccess(Launch(2, At(2, FilePlace(machine)), Same(RankArguments({}))));
  EXPECT_TRUE(std::filesystem::is_empty(machine.home() + "/place"));
}

// ---- Launchers.

TEST(LaunchedBy, Mpirun) {
  const CudaMachine machine("gpus=4");
  const VariablesOf mpirun = [&machine](int rank) {
    return Variables{{"OMPI_COMM_WORLD_RANK", absl::StrCat(rank)},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", absl::StrCat(rank)},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", "1234567"},
                     {"TMPDIR", FilePlace(machine).substr(5)}};
  };
  ExpectTheAnswerOfOneProcess(Launch(2, mpirun, Same(RankArguments({"--json"}))), {});
}

TEST(LaunchedBy, Torchrun) {
  const CudaMachine machine("gpus=4");
  const engine::FreePort port = engine::FreePort::Take().value();
  const VariablesOf torchrun = [&port](int rank) {
    return Variables{{"RANK", absl::StrCat(rank)},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", absl::StrCat(rank)},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "localhost"},
                     {"MASTER_PORT", absl::StrCat(port.number())},
                     {"TORCHELASTIC_RUN_ID", "none"},
                     {"TORCHELASTIC_RESTART_COUNT", "0"},
                     {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  };
  ExpectTheAnswerOfOneProcess(Launch(2, torchrun, Same(RankArguments({"--json"}))), {});
}

TEST(LaunchedBy, Srun) {
  const CudaMachine machine("gpus=4");
  const VariablesOf srun = [&machine](int rank) {
    return Variables{{"SLURM_PROCID", absl::StrCat(rank)},
                     {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_LOCALID", absl::StrCat(rank)},
                     {"SLURM_JOB_ID", "17"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_STEP_NUM_NODES", "1"},
                     {"TMPDIR", FilePlace(machine).substr(5)}};
  };
  ExpectTheAnswerOfOneProcess(Launch(2, srun, Same(RankArguments({"--json"}))), {});
}

}  // namespace
}  // namespace stagecoach::tools
