// One trainer per device, as in one process per device: here each in a thread of its own, since the
// stand-in of NCCL connects ranks of one process only.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/launch/launch.h"
#include "engine/launch/rendezvous.h"
#include "engine/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/cuda_run.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

// Runs `work` with each rank's end of a rendezvous, all at the same time.
template <typename Work>
std::vector<absl::Status> OnRanks(int ranks, Work work) {
  static int runs = 0;
  Launch launch{.ranks = ranks,
                .id = absl::StrCat(getpid(), "-", runs++),
                .rendezvous = absl::StrCat("file:", ::testing::TempDir())};
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Launch own = launch;
      own.rank = own.local_rank = rank;
      statuses[static_cast<size_t>(rank)] = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous,
                         ConnectRendezvous(own, base::Deadline::After(absl::Minutes(1))));
        return work(*rendezvous);
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

TinyRun RunOf(int ranks, Rendezvous* rendezvous, float clip_norm) {
  TinyRun run{.devices = ranks, .schedule = "1f1b"};
  run.options.optimizer.clip_norm = clip_norm;
  run.options.device = {.kind = DeviceKind::kCuda};
  run.options.deadline = absl::Minutes(1);
  run.options.rendezvous = rendezvous;
  return run;
}

class CudaProcesses : public ::testing::Test {
 protected:
  void SetUp() override { testing::cuda::Reset({}); }
  void TearDown() override { EXPECT_EQ(testing::cuda::live().total(), 0); }
};

TEST_F(CudaProcesses, AllHaveTheAnswerOfOneProcess) {
  for (const float clip_norm : {0.0F, 0.05F}) {
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
      EXPECT_THAT(answers, Each(expected)) << ranks << " ranks, clip norm " << clip_norm;
    }
  }
}

TEST_F(CudaProcesses, ReportTheirOwnDevice) {
  EXPECT_THAT(OnRanks(2,
                      [&](Rendezvous& own) -> absl::Status {
                        ASSIGN_OR_RETURN(const auto trainer, TinyTrainer(RunOf(2, &own, 0.0F)));
                        const std::vector<DeviceReport> devices = trainer->Devices();
                        if (devices.size() != 1) return absl::InternalError("not one device");
                        if (devices[0].device == absl::StrCat("cuda:", own.rank())) {
                          return absl::OkStatus();
                        }
                        return absl::InternalError(devices[0].device);
                      }),
              Each(IsOk()));
}

TEST_F(CudaProcesses, MustBeAsManyAsDevices) {
  EXPECT_THAT(
      OnRanks(2, [&](Rendezvous& own) { return TinyTrainer(RunOf(3, &own, 0.0F)).status(); }),
      Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 processes"))));
}

TEST_F(CudaProcesses, AreNotForCpuDevices) {
  EXPECT_THAT(OnRanks(2,
                      [&](Rendezvous& own) {
                        TinyRun run = RunOf(2, &own, 0.0F);
                        run.options.device = {};
                        return TinyTrainer(run).status();
                      }),
              Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("CUDA"))));
}

// A rank that cannot make its device ends; the others hear of it long before the deadline of a
// minute.
TEST_F(CudaProcesses, DoNotWaitForOneThatHasGone) {
  const std::vector<absl::Status> statuses = OnRanks(2, [&](Rendezvous& own) {
    TinyRun run = RunOf(2, &own, 0.0F);
    if (own.rank() == 1) run.options.device.gpus = {0, 77};
    return TinyTrainer(run).status();
  });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("GPU 77")));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("left")));
}

}  // namespace
}  // namespace stagecoach::engine
