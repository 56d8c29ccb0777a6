// One process per GPU, as a launcher starts them. GPUs are emulated, and each process has its own
// (tests/testing/cuda/stand_in.h).
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Matcher;
using ::testing::StartsWith;

using Arguments = std::vector<std::string>;
using Variables = std::vector<std::pair<std::string, std::string>>;

constexpr int kUsage = 2, kUnavailable = 69, kInternal = 70, kBadConfiguration = 78;

// Long enough for a process that waits its turn on a busy machine, and the end of those that hang.
const Arguments kDeadline = {"--deadline", "20"};
// Would take hours.
const Arguments kForever = {"--epochs", "1000000", "--tuning", "none"};

Arguments Joined(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

Arguments SmallRun(const Arguments& more) {
  return Joined({"train", "--device", "cuda", "--data", "synthetic:256x16x4", "--layers", "4",
                 "--width", "16", "--batch", "32", "--epochs", "1"},
                more);
}

// What each rank is told.
using VariablesOf = std::function<Variables(int rank)>;
using ArgumentsOf = std::function<Arguments(int rank)>;

ArgumentsOf Same(const Arguments& arguments) {
  return [arguments](int /*rank*/) { return arguments; };
}

std::vector<std::unique_ptr<Child>> Start(int ranks, const VariablesOf& variables,
                                          const ArgumentsOf& arguments) {
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const Variables own = variables(rank);  // outlives what keeps its names
    std::list<ScopedVariable> set;
    for (const auto& [name, value] : own) set.emplace_back(name.c_str(), value);
    children.push_back(std::make_unique<Child>(arguments(rank)));
  }
  return children;
}

std::vector<Finished> WaitForAll(const std::vector<std::unique_ptr<Child>>& children) {
  std::vector<Finished> all;
  for (const std::unique_ptr<Child>& child : children) all.push_back(child->Wait());
  return all;
}

std::vector<Finished> Launch(int ranks, const VariablesOf& variables,
                             const ArgumentsOf& arguments) {
  return WaitForAll(Start(ranks, variables, arguments));
}

// Stagecoach's own variables.
VariablesOf At(int ranks, const std::string& place) {
  return [ranks, place](int rank) {
    return Variables{{"STAGECOACH_RANK", absl::StrCat(rank)},
                     {"STAGECOACH_RANKS", absl::StrCat(ranks)},
                     {"STAGECOACH_RENDEZVOUS", place}};
  };
}

// One that was free a moment ago, and the next one, too.
int FreePort() {
  for (;;) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const int first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int second = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    STAGECOACH_CHECK(bind(first, any, size) == 0 && getsockname(first, any, &size) == 0,
                     "no port is free");
    const int port = ntohs(address.sin_port);
    address.sin_port = htons(static_cast<uint16_t>(port + 1));
    const bool both = port < 65535 && bind(second, any, size) == 0;
    close(first);
    close(second);
    if (both) return port;
  }
}

// A folder of its own.
std::string FilePlace(const CudaMachine& machine) {
  const std::string folder = machine.home() + "/place";
  std::filesystem::create_directory(folder);
  return "file:" + folder;
}

std::string TcpPlace() { return absl::StrCat("tcp://localhost:", FreePort()); }

void ExpectSuccess(const std::vector<Finished>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_EQ(all[rank].exit_status, 0) << "rank " << rank << ": " << all[rank].err;
    EXPECT_THAT(all[rank].err, IsEmpty()) << "rank " << rank;
  }
}

// The process ended by itself, with one line that says why.
void ExpectError(const Finished& process, const Matcher<int>& exit_status,
                 const Matcher<std::string>& line) {
  EXPECT_THAT(process.exit_status, exit_status);
  EXPECT_THAT(process.err, AllOf(StartsWith("stagecoach train: "), line));
  EXPECT_EQ(process.err.find('\n'), process.err.size() - 1) << "more than a line: " << process.err;
}

// All that two runs must have alike, of their events.
nlohmann::json AnswerOf(const Finished& run) {
  nlohmann::json answer = nlohmann::json::array();
  for (nlohmann::json event : run.Events()) {
    if (event["event"] == "epoch") {
      event.erase("samples_per_second");
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
  const Finished one =
      RunStagecoach(SmallRun(Joined({"--stages", absl::StrCat(launched.size()), "--json"}, more)));
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

// The processes come to the products that nobody has measured yet at the same time.
TEST_P(LaunchedTrain, GivesTheAnswerOfOneProcess) {
  const auto& [ranks, schedule, given] = GetParam();
  const CudaMachine machine("gpus=4");
  const Arguments more = Joined({"--schedule", schedule}, given);
  const std::vector<Finished> launched =
      Launch(ranks, At(ranks, FilePlace(machine)), Same(SmallRun(Joined(more, {"--json"}))));
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
                      TrainCase{4, "1f1b", {"--precision", "bf16"}}),
    [](const ::testing::TestParamInfo<TrainCase>& tested) {
      std::string name = absl::StrCat(tested.param.ranks, "Ranks_", tested.param.schedule);
      if (!tested.param.more.empty()) {
        absl::StrAppend(&name, tested.param.more[0] == "--precision" ? "_bf16" : "_clipped");
      }
      return name;
    });

TEST(LaunchedOverTcp, GivesTheAnswerOfOneProcess) {
  const CudaMachine machine("gpus=4");
  ExpectTheAnswerOfOneProcess(Launch(3, At(3, TcpPlace()), Same(SmallRun({"--json"}))), {});
}

TEST(LaunchedReport, IsRank0sAlone) {
  const CudaMachine machine("gpus=4");
  const std::vector<Finished> all = Launch(2, At(2, FilePlace(machine)), Same(SmallRun({})));
  ExpectSuccess(all);
  EXPECT_THAT(all[0].out, AllOf(HasSubstr("loss"), HasSubstr("measured peak")));
  EXPECT_THAT(all[1].out, IsEmpty());
}

TEST(LaunchedPlace, IsLeftAsItWas) {
  const CudaMachine machine("gpus=4");
  ExpectSuccess(Launch(2, At(2, FilePlace(machine)), Same(SmallRun({}))));
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
  ExpectTheAnswerOfOneProcess(Launch(2, mpirun, Same(SmallRun({"--json"}))), {});
}

TEST(LaunchedBy, Torchrun) {
  const CudaMachine machine("gpus=4");
  const VariablesOf torchrun = [port = FreePort()](int rank) {
    return Variables{{"RANK", absl::StrCat(rank)},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", absl::StrCat(rank)},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "localhost"},
                     {"MASTER_PORT", absl::StrCat(port)},
                     {"TORCHELASTIC_RUN_ID", "none"},
                     {"TORCHELASTIC_RESTART_COUNT", "0"},
                     {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  };
  ExpectTheAnswerOfOneProcess(Launch(2, torchrun, Same(SmallRun({"--json"}))), {});
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
  ExpectTheAnswerOfOneProcess(Launch(2, srun, Same(SmallRun({"--json"}))), {});
}

// ---- Processes that cannot train together.

class LaunchedWith : public ::testing::TestWithParam<Arguments> {};

TEST_P(LaunchedWith, OtherFlagsIsRefusedByAll) {
  const CudaMachine machine("gpus=4");
  const ArgumentsOf one_differs = [](int rank) {
    return SmallRun(Joined(kDeadline, rank == 1 ? GetParam() : Arguments()));
  };
  for (const Finished& process : Launch(3, At(3, FilePlace(machine)), one_differs)) {
    ExpectError(process, kBadConfiguration, HasSubstr("rank 1 trains something else"));
  }
}

std::string FlagOf(const ::testing::TestParamInfo<Arguments>& tested) {
  std::string name = tested.param[0].substr(2);
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Rank1, LaunchedWith,
    ::testing::Values(Arguments{"--schedule", "gpipe"}, Arguments{"--batch", "64"},
                      Arguments{"--precision", "bf16"}, Arguments{"--seed", "2"},
                      Arguments{"--clip-norm", "1"}, Arguments{"--optimizer", "sgd"},
                      Arguments{"--layers", "5"}, Arguments{"--learning-rate", "0.5"},
                      Arguments{"--epochs", "2"}, Arguments{"--data", "synthetic:128x16x4"}),
    FlagOf);

TEST(LaunchedStages, OfOneThatAsksForMoreAreRefusedByAll) {
  const CudaMachine machine("gpus=4");
  const ArgumentsOf one_differs = [](int rank) {
    return SmallRun(Joined(kDeadline, rank == 1 ? Arguments{"--stages", "3"} : Arguments()));
  };
  const std::vector<Finished> all = Launch(2, At(2, FilePlace(machine)), one_differs);
  ExpectError(all[1], kUsage, HasSubstr("2 processes for 3 devices"));
  ExpectError(all[0], kBadConfiguration, HasSubstr("rank 1 has failed"));
}

TEST(LaunchedStages, AreAsManyAsProcesses) {
  const CudaMachine machine("gpus=4");
  for (const Finished& process :
       Launch(2, At(2, FilePlace(machine)), Same(SmallRun({"--stages", "3"})))) {
    ExpectError(process, kUsage, HasSubstr("2 processes for 3 devices"));
  }
}

// Rank 0 among them, where a tcp place has its store.
TEST(LaunchedWithoutAGpu, EndsAll) {
  for (const int victim : {0, 1}) {
    const CudaMachine machine("gpus=4");
    const VariablesOf place = At(3, TcpPlace());
    const VariablesOf one_without = [&](int rank) {
      Variables variables = place(rank);
      if (rank == victim) variables.emplace_back("STAGECOACH_CUDA_STAND_IN", "gpus=0");
      return variables;
    };
    const std::vector<Finished> all = Launch(3, one_without, Same(SmallRun(kDeadline)));
    for (int rank = 0; rank < 3; ++rank) {
      const Finished& process = all[static_cast<size_t>(rank)];
      if (rank == victim) {
        ExpectError(process, kUnavailable, HasSubstr("sees no GPU"));
      } else {
        ExpectError(process, AnyOf(kUnavailable, kBadConfiguration),
                    AnyOf(HasSubstr(absl::StrCat("rank ", victim)), HasSubstr("localhost")));
      }
    }
  }
}

// ---- Processes that fail while they train.

// What ends the others, which have nothing of their own to complain of.
const Matcher<std::string>& SaysThatAnotherFailed() {
  static const auto* const matcher = new Matcher<std::string>(
      ContainsRegex("process of another rank has ended|rank [0-9] (has failed|has left|was "
                    "killed|of 3 did not come in time)"));
  return *matcher;
}

class LaunchedKilled : public ::testing::TestWithParam<int> {};

void KillOne(size_t victim, const std::string& place) {
  const std::vector<std::unique_ptr<Child>> children =
      Start(3, At(3, place), Same(SmallRun(Joined(Joined(kForever, kDeadline), {"--json"}))));
  ASSERT_TRUE(children[0]->WaitForOutput("\"event\":\"epoch\""));
  children[victim]->Signal(SIGKILL);
  const std::vector<Finished> all = WaitForAll(children);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (rank == victim) continue;
    ExpectError(all[rank], AnyOf(kInternal, kUnavailable), SaysThatAnotherFailed());
  }
}

TEST_P(LaunchedKilled, EndsTheOthers) {
  const CudaMachine machine("gpus=4");
  KillOne(static_cast<size_t>(GetParam()), FilePlace(machine));
}

TEST_P(LaunchedKilled, EndsTheOthersOverTcp) {
  const CudaMachine machine("gpus=4");
  KillOne(static_cast<size_t>(GetParam()), TcpPlace());
}

INSTANTIATE_TEST_SUITE_P(Rank, LaunchedKilled, ::testing::Values(0, 1, 2),
                         ::testing::PrintToStringParamName());

// The GPU of one process fails long after training has begun.
TEST(LaunchedGpuFailure, EndsTheOthers) {
  const CudaMachine machine("gpus=4");
  const VariablesOf place = At(3, FilePlace(machine));
  const VariablesOf one_fails = [&](int rank) {
    Variables variables = place(rank);
    if (rank == 1) variables.emplace_back("STAGECOACH_CUDA_STAND_IN", "gpus=4,fail_operation=4000");
    return variables;
  };
  const std::vector<Finished> all =
      Launch(3, one_fails, Same(SmallRun(Joined(Joined(kForever, kDeadline), {"--json"}))));
  EXPECT_THAT(all[0].out, HasSubstr("\"event\":\"epoch\"")) << "failed before it trained";
  ExpectError(all[1], kInternal, AnyOf(HasSubstr("cuda"), HasSubstr("nccl"), HasSubstr("cublas")));
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    ExpectError(all[rank], AnyOf(kInternal, kUnavailable),
                AnyOf(SaysThatAnotherFailed(), HasSubstr("waited in vain for other ranks")));
  }
}

}  // namespace
}  // namespace stagecoach::tools
