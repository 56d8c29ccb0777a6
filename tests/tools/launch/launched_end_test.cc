// How processes that train together end: refused, failed, killed, or stopped by a signal.
#include <signal.h>

#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"
#include "tests/tools/launch/launched_run.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Matcher;
using ::testing::StartsWith;

// ---- Processes that cannot train together.

class LaunchedWith : public ::testing::TestWithParam<Arguments> {};

TEST_P(LaunchedWith, OtherFlagsIsRefusedByAll) {
  const CudaMachine machine("gpus=4");
  const ArgumentsOf one_differs = [](int rank) {
    return RankArguments(Joined(Deadline(), rank == 1 ? GetParam() : Arguments()));
  };
  for (const Finished& process : Launch(3, At(3, FilePlace(machine)), one_differs)) {
    ExpectError(process, kStatusBadConfiguration, HasSubstr("rank 1 does not train the same"));
  }
}

std::string FlagOf(const ::testing::TestParamInfo<Arguments>& tested) {
  std::string name = tested.param[0].substr(2);
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Rank1, LaunchedWith,
    ::testing::Values(Arguments{"--schedule", "gpipe"}, Arguments{"--global-batch-size", "64"},
                      Arguments{"--precision", "bf16"}, Arguments{"--seed", "2"},
                      Arguments{"--clip-norm", "1"}, Arguments{"--optimizer", "sgd"},
                      Arguments{"--layers", "5"}, Arguments{"--learning-rate", "0.5"},
                      Arguments{"--epochs", "2"}, Arguments{"--data", "synthetic:128x16x4"}),
    FlagOf);

TEST(LaunchedStages, OfOneThatAsksForMoreAreRefusedByAll) {
  const CudaMachine machine("gpus=4");
  const ArgumentsOf one_differs = [](int rank) {
    return RankArguments(Joined(Deadline(), rank == 1 ? Arguments{"--stages", "3"} : Arguments()));
  };
  const std::vector<Finished> all = Launch(2, At(2, FilePlace(machine)), one_differs);
  ExpectError(all[1], kStatusBadConfiguration, HasSubstr("2 processes for 3 devices"));
  ExpectError(all[0], kStatusTryAgain, HasSubstr("rank 1 has failed"));
}

TEST(LaunchedStages, AreAsManyAsProcesses) {
  const CudaMachine machine("gpus=4");
  for (const Finished& process :
       Launch(2, At(2, FilePlace(machine)), Same(RankArguments({"--stages", "3"})))) {
    ExpectError(process, kStatusBadConfiguration, HasSubstr("2 processes for 3 devices"));
  }
}

TEST(LaunchedGpus, AreAsManyAsTheProcessesOfAHost) {
  const CudaMachine machine("gpus=2");
  const std::vector<Finished> all = Launch(3, At(3, TcpPlace()), Same(RankArguments(Deadline())));
  ExpectError(all[2], kStatusUnavailable, HasSubstr("rank 2: local rank 2 takes GPU 2"));
  for (int rank = 0; rank < 2; ++rank) {
    ExpectError(all[static_cast<size_t>(rank)], kStatusTryAgain,
                HasSubstr(absl::StrCat("rank ", rank, ": rank 2 has failed: ")));
  }
}

// The victims include rank 0, where a tcp place has its store.
TEST(LaunchedWithoutAGpu, EndsAll) {
  for (const int victim : {0, 1}) {
    const CudaMachine machine("gpus=4");
    const VariablesOf place = At(3, TcpPlace());
    const VariablesOf one_without = [&](int rank) {
      Variables variables = place(rank);
      if (rank == victim) variables.emplace_back("STAGECOACH_CUDA_STAND_IN", "gpus=0");
      return variables;
    };
    const std::vector<Finished> all = Launch(3, one_without, Same(RankArguments(Deadline())));
    for (int rank = 0; rank < 3; ++rank) {
      const Finished& process = all[static_cast<size_t>(rank)];
      if (rank == victim) {
        ExpectError(process, kStatusUnavailable, HasSubstr("sees no GPU"));
      } else {
        ExpectError(process, kStatusTryAgain,
                    AnyOf(HasSubstr(absl::StrCat("rank ", victim)), HasSubstr("localhost")));
      }
    }
  }
}

// ---- Processes that fail while they train.

// Matches the error that ends the others, which have no error of their own.
const Matcher<std::string>& SaysThatAnotherFailed() {
  static const auto* const matcher = new Matcher<std::string>(
      ContainsRegex("process of another rank has ended|rank [0-9] (has failed|has left|was "
                    "killed|of 3 did not arrive in time)"));
  return *matcher;
}

class LaunchedKilled : public ::testing::TestWithParam<int> {};

void KillOne(size_t victim, const std::string& place, const Arguments& deadline) {
  const std::vector<std::unique_ptr<Child>> children =
      Start(3, At(3, place), Same(RankArguments(Joined(Joined(Forever(), deadline), {"--json"}))));
  ASSERT_TRUE(children[0]->WaitForOutput("\"event\":\"epoch\""));
  children[victim]->Signal(SIGKILL);
  const std::vector<Finished> all = WaitForAll(children);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (rank == victim) continue;
    ExpectError(all[rank], kStatusTryAgain, SaysThatAnotherFailed());
  }
}

TEST_P(LaunchedKilled, EndsTheOthers) {
  const CudaMachine machine("gpus=4");
  // With a file place, a rank that is killed while all vote on stopping is noticed only at the
  // deadline.
  KillOne(static_cast<size_t>(GetParam()), FilePlace(machine), {"--timeout", "30"});
}

TEST_P(LaunchedKilled, EndsTheOthersOverTcp) {
  const CudaMachine machine("gpus=4");
  KillOne(static_cast<size_t>(GetParam()), TcpPlace(), Deadline());
}

INSTANTIATE_TEST_SUITE_P(Rank, LaunchedKilled, ::testing::Values(0, 1, 2),
                         ::testing::PrintToStringParamName());

// ---- A process that stops without ending. NCCL does not notice, and even its shutdown waits.

struct StopPlace {
  const char* name;
  const char* call;  // library call at which the process stops itself; "": while it trains
  bool trained;      // by then the others have finished their work

  friend void PrintTo(const StopPlace& place, std::ostream* out) { *out << place.name; }
};

class LaunchedStopped : public ::testing::TestWithParam<std::tuple<StopPlace, size_t>> {
 protected:
  static constexpr int kDeadlineSeconds = 2;

  static StopPlace stop() { return std::get<0>(GetParam()); }
  static size_t victim() { return std::get<1>(GetParam()); }
  static bool WhileItTrains() { return *stop().call == '\0'; }

  static VariablesOf VariablesAt(const std::string& place) {
    return [at = At(3, place)](int rank) {
      std::string stand_in = "gpus=4,nccl_end_waits=1";
      if (static_cast<size_t>(rank) == victim() && !WhileItTrains()) {
        absl::StrAppend(&stand_in, ",stop_at=", stop().call);
      }
      Variables variables = at(rank);
      variables.emplace_back("STAGECOACH_CUDA_STAND_IN", stand_in);
      return variables;
    };
  }

  static void ExpectEnd(const Finished& process) {
    const auto left_behind = ContainsRegex(
        "stagecoach: ncclComm[A-Z][a-z]+ of rank [0-2] of 3 has not returned; the process ends "
        "without it\n$");
    // If rank 0's store goes, the others may not have heard yet that all are done.
    const bool may_fail = victim() == 0 && process.exit_status != 0;
    if (stop().trained && !may_fail) {
      EXPECT_EQ(process.exit_status, 0) << process.err;
      EXPECT_THAT(WithoutWaits(process.err), AnyOf(IsEmpty(), left_behind));
      return;
    }
    EXPECT_THAT(process.exit_status, kStatusTryAgain);
    EXPECT_THAT(WithoutWaits(process.err),
                AllOf(StartsWith("stagecoach train: "),
                      ContainsRegex(" in time|timed out|does not answer")));
  }

  // Stops one process. The others end by themselves, soon after the deadline at the latest.
  static void StopOne(const std::string& place) {
    Arguments arguments = RankArguments({"--json", "--timeout", absl::StrCat(kDeadlineSeconds)});
    if (!stop().trained) arguments = Joined(arguments, Forever());
    const std::vector<std::unique_ptr<Child>> children =
        Start(3, VariablesAt(place), Same(arguments));
    if (WhileItTrains()) {
      ASSERT_TRUE(children[0]->WaitForOutput("\"event\":\"epoch\""));
      children[victim()]->Signal(SIGSTOP);
    }
    ASSERT_TRUE(children[victim()]->WaitUntilStopped());
    const absl::Time stopped = absl::Now();
    for (size_t rank = 0; rank < children.size(); ++rank) {
      if (rank != victim()) ExpectEnd(children[rank]->Wait());
    }
    // Two seconds are enough; a busy machine may take more.
    EXPECT_LT(absl::Now() - stopped, absl::Seconds(kDeadlineSeconds + 2 + 5));
  }
};

TEST_P(LaunchedStopped, DoesNotKeepTheOthers) {
  const CudaMachine machine("gpus=4");
  StopOne(TcpPlace());
}

INSTANTIATE_TEST_SUITE_P(
    At, LaunchedStopped,
    ::testing::Combine(::testing::Values(StopPlace{"Start", "cudaGetDeviceCount", false},
                                         StopPlace{"Joining", "ncclCommInitRankConfig", false},
                                         StopPlace{"Connecting", "ncclGroupEnd", false},
                                         StopPlace{"Training", "", false},
                                         StopPlace{"Goodbye", "ncclCommFinalize", true},
                                         StopPlace{"End", "ncclCommDestroy", true}),
                       ::testing::Values(size_t{0}, size_t{1})),
    [](const ::testing::TestParamInfo<std::tuple<StopPlace, size_t>>& tested) {
      return absl::StrCat(std::get<0>(tested.param).name, "OfRank", std::get<1>(tested.param));
    });

class LaunchedStoppedAtAFilePlace : public LaunchedStopped {};

TEST_P(LaunchedStoppedAtAFilePlace, DoesNotKeepTheOthers) {
  const CudaMachine machine("gpus=4");
  StopOne(FilePlace(machine));
}

INSTANTIATE_TEST_SUITE_P(WhileItTrains, LaunchedStoppedAtAFilePlace,
                         ::testing::Values(std::make_tuple(StopPlace{"Training", "", false},
                                                           size_t{1})),
                         [](const auto&) { return "Rank1"; });

// The GPU of one process fails long after training has begun.
TEST(LaunchedGpuFailure, EndsTheOthers) {
  const CudaMachine machine("gpus=4");
  const VariablesOf place = At(3, FilePlace(machine));
  const VariablesOf one_fails = [&](int rank) {
    Variables variables = place(rank);
    if (rank == 1) variables.emplace_back("STAGECOACH_CUDA_STAND_IN", "gpus=4,fail_operation=1500");
    return variables;
  };
  const std::vector<Finished> all =
      Launch(3, one_fails, Same(RankArguments(Joined(Joined(Forever(), Deadline()), {"--json"}))));
  EXPECT_THAT(all[0].out, HasSubstr("\"event\":\"epoch\"")) << "failed before it trained";
  ExpectError(all[1], kStatusInternal,
              AnyOf(HasSubstr("cuda"), HasSubstr("nccl"), HasSubstr("cublas")));
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    ExpectError(all[rank], kStatusTryAgain,
                AnyOf(SaysThatAnotherFailed(), HasSubstr("timed out waiting for other ranks")));
  }
}

// ---- Processes one of which is asked to stop.

struct StopCase {
  int signal;
  int asked;  // the rank
};

class LaunchedStop : public ::testing::TestWithParam<StopCase> {};

TEST_P(LaunchedStop, EndsAllWithASummary) {
  const CudaMachine machine("gpus=2");
  const std::vector<std::unique_ptr<Child>> children = Start(
      2, At(2, TcpPlace()), Same(RankArguments(Joined(Joined(Forever(), Deadline()), {"--json"}))));
  ASSERT_TRUE(children[0]->WaitForOutput("\"event\":\"epoch\""));
  children[static_cast<size_t>(GetParam().asked)]->Signal(GetParam().signal);
  const std::vector<Finished> all = WaitForAll(children);
  for (int rank = 0; rank < 2; ++rank) {
    const Finished& process = all[static_cast<size_t>(rank)];
    EXPECT_EQ(process.exit_status, 128 + GetParam().signal) << process.err;
    EXPECT_THAT(WithoutWaits(process.err), IsEmpty());
  }
  const nlohmann::json end = all[0].Events().back();
  EXPECT_EQ(end["event"], "end");
  EXPECT_EQ(end["stopped"], true);
  EXPECT_EQ(end["devices"].size(), 2);
}

INSTANTIATE_TEST_SUITE_P(Of, LaunchedStop,
                         ::testing::Values(StopCase{SIGINT, 0}, StopCase{SIGTERM, 1},
                                           StopCase{SIGHUP, 1}),
                         [](const ::testing::TestParamInfo<StopCase>& tested) {
                           return absl::StrCat("Signal", tested.param.signal, "OfRank",
                                               tested.param.asked);
                         });

}  // namespace
}  // namespace stagecoach::tools
