// One trainer per device, as in one process per device; here each runs in a thread of its own,
// which is quicker and can be made to fail at will. tests/tools has processes.
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/vote.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/fit.h"
#include "engine/train/parallel.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/memory/memory_plan.h"
#include "tests/engine/comm/on_ranks.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/cuda/cublas_lt/faults.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The deadline of what succeeds, or fails long before: enough for any sanitizer on a busy machine.
// Passing it would produce other messages.
constexpr absl::Duration kDeadline = absl::Minutes(5);

TinyRun RunOf(int ranks, Rendezvous* rendezvous, float clip_norm) {
  TinyRun run{.devices = ranks, .schedule = "1f1b"};
  run.options.optimizer.clip_norm = clip_norm;
  run.options.device = {.kind = DeviceKind::kCuda};
  run.options.deadline = kDeadline;
  run.options.rendezvous = rendezvous;
  return run;
}

class CudaProcesses : public ::testing::Test {
 protected:
  void SetUp() override { testing::cuda::Reset({}); }
  void TearDown() override { EXPECT_TRUE(testing::cuda::NothingIsLeft()); }
};

void ExpectTheAnswerOfOneProcess(float clip_norm) {
  const TinyAnswer expected = AnswerOf(RunOf(1, nullptr, clip_norm)).value();
  for (const int ranks : {2, 4}) {
    std::vector<TinyAnswer> answers(static_cast<size_t>(ranks));
    EXPECT_THAT(OnRanks(ranks,
                        [&](Rendezvous& own) -> absl::Status {
                          ASSIGN_OR_RETURN(answers[static_cast<size_t>(own.rank())],
                                           AnswerOf(RunOf(ranks, &own, clip_norm)));
                          return absl::OkStatus();
                        }),
                Each(IsOk()));
    EXPECT_THAT(answers, Each(expected)) << ranks << " ranks";
  }
}

TEST_F(CudaProcesses, AllHaveTheAnswerOfOneProcess) { ExpectTheAnswerOfOneProcess(0.0F); }

TEST_F(CudaProcesses, AllHaveTheAnswerOfOneProcessThatClips) { ExpectTheAnswerOfOneProcess(0.05F); }

// Each process has a stage of a replica.
TEST_F(CudaProcesses, OfReplicasHaveTheAnswerOfOneDevice) {
  const auto run_of = [](int stages, const partition::Replication& replication,
                         const std::string& schedule, Rendezvous* rendezvous) {
    TinyRun run = RunOf(stages, rendezvous, 0.05F);
    run.schedule = schedule;
    run.replication = replication;
    return run;
  };
  std::map<int, TinyAnswer> expected;
  for (const int blocks : {4, 6}) {
    ASSERT_OK_AND_ASSIGN(expected[blocks],
                         AnswerOf(run_of(1, {.gradient_blocks = blocks}, "1f1b", nullptr)));
  }
  const struct {
    int stages;
    partition::Replication replication;
    const char* schedule;
  } cases[] = {{1, {2, 4}, "1f1b"},
               {1, {4, 4, true}, "gpipe"},
               {2, {2, 4}, "zb-h1"},
               {1, {3, 6}, "1f1b"},
               {1, {2, 6, true}, "1f1b"}};
  for (const auto& [stages, replication, schedule] : cases) {
    const int devices = stages * replication.replicas;
    std::vector<TinyAnswer> answers(static_cast<size_t>(devices));
    EXPECT_THAT(
        OnRanks(devices,
                [&, stages = stages, replication = replication,
                 schedule = schedule](Rendezvous& own) -> absl::Status {
                  ASSIGN_OR_RETURN(const auto trainer,
                                   TinyTrainer(run_of(stages, replication, schedule, &own)));
                  ASSIGN_OR_RETURN(answers[static_cast<size_t>(own.rank())], AnswerOf(*trainer));
                  ASSIGN_OR_RETURN(const auto reports, trainer->Devices());
                  for (const DeviceReport& device : reports) {
                    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
                    EXPECT_EQ(device.measured_sent, device.predicted_sent);
                  }
                  return absl::OkStatus();
                }),
        Each(IsOk()));
    EXPECT_THAT(answers, Each(expected[replication.gradient_blocks]))
        << schedule << ", " << replication.replicas << " replicas";
  }
}

// Returns everything that a run reports about its devices, except how long they worked.
std::string Description(const std::vector<DeviceReport>& devices) {
  std::string text;
  for (const DeviceReport& device : devices) {
    absl::StrAppend(&text, device.device, " ", device.predicted_peak_bytes, " ",
                    device.measured_peak_bytes, " ", device.peak_stashed, " ",
                    device.predicted_stash_bytes, " ", device.measured_stash_bytes, "\n");
  }
  return text;
}

TEST_F(CudaProcesses, AllReportTheDevicesOfOneProcess) {
  constexpr int kRanks = 3;
  const auto alone = TinyTrainer(RunOf(kRanks, nullptr, 0.0F)).value();
  ASSERT_OK(AnswerOf(*alone));
  std::vector<DeviceReport> of_processes = alone->Devices().value();
  // Ranks without the loss keep its results, in addition to what they take in one process.
  for (int rank = 0; rank + 1 < kRanks; ++rank) {
    of_processes[static_cast<size_t>(rank)].predicted_peak_bytes += schedule::kBlockAlignment;
    of_processes[static_cast<size_t>(rank)].measured_peak_bytes += schedule::kBlockAlignment;
  }
  const std::string expected = Description(of_processes);
  std::vector<std::vector<DeviceReport>> reports(kRanks);
  EXPECT_THAT(
      OnRanks(kRanks,
              [&](Rendezvous& own) -> absl::Status {
                ASSIGN_OR_RETURN(const auto trainer, TinyTrainer(RunOf(kRanks, &own, 0.0F)));
                RETURN_IF_ERROR(AnswerOf(*trainer).status());
                ASSIGN_OR_RETURN(reports[static_cast<size_t>(own.rank())], trainer->Devices());
                return absl::OkStatus();
              }),
      Each(IsOk()));
  for (const std::vector<DeviceReport>& devices : reports) {
    EXPECT_EQ(Description(devices), expected);
    for (const DeviceReport& device : devices) {
      EXPECT_GT(device.busy, 0.0) << device.device;
      EXPECT_LE(device.busy, 1.0) << device.device;
    }
  }
}

TEST_F(CudaProcesses, AllHaveEveryParameter) {
  // The first has more values than go into one message of a rendezvous.
  TinyRun run = RunOf(2, nullptr, 0.0F);
  run.model.layers = {Linear(14000), Linear(kSmallClasses)};
  run.options.optimizer = Optimizer::Sgd();
  const std::vector<std::string> names = {"layer 0: weight", "layer 1: weight", "layer 1: bias"};
  const auto alone = TinyTrainer(run).value();
  std::vector<std::vector<float>> expected;
  for (const std::string& name : names) expected.push_back(alone->Parameter(name).value());
  ASSERT_GT(expected.front().size() * sizeof(float), size_t{Rendezvous::kMaxValueBytes});
  EXPECT_THAT(OnRanks(2,
                      [&](Rendezvous& own) -> absl::Status {
                        TinyRun mine = run;
                        mine.options.rendezvous = &own;
                        ASSIGN_OR_RETURN(const auto trainer, TinyTrainer(mine));
                        for (size_t i = 0; i < names.size(); ++i) {
                          ASSIGN_OR_RETURN(const std::vector<float> values,
                                           trainer->Parameter(names[i]));
                          if (values != expected[i]) return absl::DataLossError(names[i]);
                        }
                        const absl::Status unknown = trainer->Parameter("layer 9: weight").status();
                        EXPECT_THAT(unknown, StatusIs(absl::StatusCode::kNotFound,
                                                      AllOf(HasSubstr("layer 0: weight"),
                                                            HasSubstr("layer 1: bias"))));
                        return absl::OkStatus();
                      }),
              Each(IsOk()));
}

// One process is asked to stop.
TEST_F(CudaProcesses, StopAfterTheSameStep) {
  const TrainTest data = {SmallData(96), SmallData(30)};
  std::vector<FitResult> results(2);
  EXPECT_THAT(
      OnRanks(2,
              [&](Rendezvous& own) -> absl::Status {
                ASSIGN_OR_RETURN(const auto trainer, TinyTrainer(RunOf(2, &own, 0.0F)));
                const bool is_asked = own.rank() == 1;
                Vote vote(&own, {.wanted = [&] { return is_asked && trainer->steps() > 0; },
                                 .interval = absl::Milliseconds(1),
                                 .deadline = kDeadline});
                ASSIGN_OR_RETURN(
                    results[static_cast<size_t>(own.rank())],
                    Fit(*trainer, data, {.epochs = 1000, .stop = [&] { return vote.Passes(); }}));
                return absl::OkStatus();
              }),
      Each(IsOk()));
  EXPECT_TRUE(results[0].stopped);
  EXPECT_TRUE(results[1].stopped);
  EXPECT_GT(results[0].steps, 0);
  EXPECT_EQ(results[0].steps, results[1].steps);
  EXPECT_EQ(results[0].step_losses_hash, results[1].step_losses_hash);
}

TEST_F(CudaProcesses, MustBeAsManyAsDevices) {
  EXPECT_THAT(
      OnRanks(2, [&](Rendezvous& own) { return TinyTrainer(RunOf(3, &own, 0.0F)).status(); }),
      Each(IsRefused("2 processes")));
}

TEST_F(CudaProcesses, CannotCopyFromOneToAnother) {
  const std::vector<absl::Status> statuses = OnRanks(2, [&](Rendezvous& own) {
    TinyRun run = RunOf(2, &own, 0.0F);
    run.options.exchange = Exchange::kCopies;
    return TinyTrainer(run).status();
  });
  // One rank may hear it from the other before it finds out itself.
  EXPECT_THAT(statuses, Contains(StatusIs(absl::StatusCode::kInvalidArgument)));
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("of one process"));
  }
}

// Each process may see only one GPU. Here both see the same one, and NCCL refuses that.
TEST_F(CudaProcesses, ExchangeByNcclIfAllNameTheSameGpu) {
  const std::vector<absl::Status> statuses = OnRanks(2, [&](Rendezvous& own) {
    TrainerOptions options = RunOf(2, &own, 0.0F).options;
    options.device.gpus = {0, 0};
    return DistributedDataParallel(TinyModel(), own, 8, options).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("Duplicate GPU"));
  }
}

TEST_F(CudaProcesses, MayBeOne) {
  EXPECT_THAT(OnRanks(1,
                      [&](Rendezvous& own) {
                        TrainerOptions options = RunOf(1, &own, 0.0F).options;
                        options.device.gpus = {0};
                        return DistributedDataParallel(TinyModel(), own, 8, options).status();
                      }),
              Each(IsOk()));
}

TEST_F(CudaProcesses, HearWhyAnotherCannotBegin) {
  const std::vector<absl::Status> statuses = OnRanks(2, [&](Rendezvous& own) {
    TinyRun run = RunOf(2, &own, 0.0F);
    if (own.rank() == 1) run.options.device.gpus = {0, 77};
    return TinyTrainer(run).status();
  });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, "GPU 77"));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kAborted,
                                    AllOf(HasSubstr("rank 1 has failed"), HasSubstr("GPU 77"))));
}

TEST_F(CudaProcesses, MustTrainTheSame) {
  const std::vector<absl::Status> statuses = OnRanks(2, [&](Rendezvous& own) {
    TinyRun run = RunOf(2, &own, 0.0F);
    run.options.fingerprint = own.rank() == 1 ? "other data" : "data";
    return TinyTrainer(run).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                      "rank 1 does not train the same as rank 0")));
}

constexpr int64_t kSlowNs = 1'000'000'000;

// The tuning files are of two hosts, each with a different fastest algorithm of the stand-in's.
TEST_F(CudaProcesses, MustComputeTheSameBits) {
  const std::string folder = ::testing::TempDir() + absl::StrCat("tuning-", getpid(), "-");
  std::vector<std::string> files;
  for (const int32_t fastest : {66, 67}) {
    testing::cuda::BlasFaults slow;
    for (const int32_t id : {0, 6, 21, 31, 66, 67}) {  // all of cublas_lt/algorithms.cc
      if (id != fastest) slow.extra_ns[id] = kSlowNs;
    }
    testing::cuda::SetBlasFaults(slow);
    TinyRun run = RunOf(1, nullptr, 0.0F);
    run.model = BlocksModel();
    run.options.device.tuning_file = files.emplace_back(absl::StrCat(folder, fastest));
    ASSERT_OK(TinyTrainer(run));
  }
  testing::cuda::SetBlasFaults({});
  const std::vector<absl::Status> statuses = OnRanks(2, [&](Rendezvous& own) {
    TinyRun run = RunOf(2, &own, 0.0F);
    run.model = BlocksModel();
    run.options.device.tuning_file = files[static_cast<size_t>(own.rank())];
    return TinyTrainer(run).status();
  });
  // One rank may hear of the other's failure before it fails in the same way.
  const auto says_so = HasSubstr("ranks 0 and 1 would not compute the same bits");
  EXPECT_THAT(statuses, Contains(StatusIs(absl::StatusCode::kFailedPrecondition, says_so)));
  EXPECT_THAT(statuses, Each(AnyOf(StatusIs(absl::StatusCode::kFailedPrecondition, says_so),
                                   StatusIs(absl::StatusCode::kAborted, says_so))));
  for (const std::string& file : files) {
    std::filesystem::remove(file);
    std::filesystem::remove(file + ".lock");
  }
}

// The communicator of one rank fails without telling the other, as may happen with NCCL.
TEST_F(CudaProcesses, HearWhyAnotherFailsInAStep) {
  for (const int failing : {0, 1}) {
    SCOPED_TRACE(failing);
    testing::cuda::Reset({});
    const std::vector<absl::Status> statuses = OnRanks(2, [&](Rendezvous& own) -> absl::Status {
      ASSIGN_OR_RETURN(const auto trainer, TinyTrainer(RunOf(2, &own, 0.0F)));
      RETURN_IF_ERROR(own.Barrier(base::Deadline::After(kDeadline)));
      if (own.rank() == failing) testing::cuda::FailCommunicator(failing, /*groups=*/2);
      const absl::Status first = AnswerOf(*trainer).status();
      EXPECT_EQ(trainer->ParametersHash().status(), first) << "a trainer that has failed goes on";
      EXPECT_EQ(trainer->Devices().status(), first) << "a trainer that has failed goes on";
      return first;
    });
    const std::string own = absl::StrCat("rank ", failing, ", ");
    EXPECT_THAT(std::string(statuses[static_cast<size_t>(failing)].message()), StartsWith(own));
    EXPECT_THAT(statuses[static_cast<size_t>(1 - failing)],
                StatusIs(absl::StatusCode::kAborted,
                         StartsWith(absl::StrCat("rank ", failing, " has failed: ", own))));
  }
}

// Whichever process fails, the other learns of it.
TEST_F(CudaProcesses, AllFailWhenTheParametersOfOneCannotBeRead) {
  for (const bool hashes : {true, false}) {
    testing::cuda::Reset({});
    const std::vector<absl::Status> statuses = OnRanks(2, [&](Rendezvous& own) -> absl::Status {
      ASSIGN_OR_RETURN(const auto trainer, TinyTrainer(RunOf(2, &own, 0.0F)));
      RETURN_IF_ERROR(own.Barrier(base::Deadline::After(kDeadline)));
      if (own.rank() == 0) testing::cuda::FailOperation(0);
      RETURN_IF_ERROR(own.Barrier(base::Deadline::After(kDeadline)));
      return hashes ? trainer->ParametersHash().status()
                    : trainer->Parameter("layer 0: weight").status();
    });
    EXPECT_THAT(statuses, Each(Not(IsOk()))) << "hashes: " << hashes;
  }
}

}  // namespace
}  // namespace stagecoach::engine
