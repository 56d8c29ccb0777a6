// Runs on GPUs that continue with a new process in place of one whose GPU has failed at any moment.
// Processes are threads; state_snapshot_test.cc has what does not depend on the device, and
// tests/tools has processes.
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/comm/launch.h"
#include "engine/comm/rendezvous.h"
#include "engine/train/recovery/state_snapshot.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/on_ranks.h"
#include "tests/engine/train/runs/replicated_run.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::testing::Each;

constexpr absl::Duration kRecoveryDeadline = absl::Minutes(5);
constexpr int64_t kStepsBefore = 1, kStepsAfter = 3;

base::Deadline Soon() { return base::Deadline::After(kRecoveryDeadline); }

// Returns, once some process has failed, what this one has trained up to the step that all agree
// on. None: this is the process that is lost.
absl::StatusOr<std::optional<StateSnapshot>> PrepareRecovery(Trainer& trainer,
                                                             const absl::Status& failure,
                                                             Rendezvous& next) {
  std::optional<StepProgress> own;
  if (IsOfAnotherRank(failure)) {
    own = {.steps = trainer.steps(), .may_complete = trainer.may_complete_step()};
  }
  ASSIGN_OR_RETURN(const int64_t steps, AgreeOnStep(next, own, kRecoveryDeadline));
  if (!own.has_value()) return std::nullopt;
  if (trainer.steps() < steps) RETURN_IF_ERROR(trainer.CompleteStep());
  ASSIGN_OR_RETURN(StateSnapshot snapshot, trainer.TakeSnapshot());
  snapshot.position = DataPosition{.rows = steps};
  return snapshot;
}

// Runs all processes of a run in which the GPU of one fails after N operations of all GPUs. Returns
// the fingerprint that each reaches with a new one in its place.
std::vector<std::string> HashesWithALoss(const ReplicatedRun& run, int64_t operations) {
  std::vector<std::string> hashes(static_cast<size_t>(run.processes()));
  const std::string meeting = absl::StrCat(getpid(), "-again-", run.stages, "-", operations);
  const auto work = [&](Rendezvous& rendezvous) -> absl::Status {
    const int rank = rendezvous.rank();
    std::unique_ptr<Rendezvous> next;  // outlives the trainer
    ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer, MakeTrainer(run, rendezvous));
    RETURN_IF_ERROR(TrainTo(*trainer, kStepsBefore).status());
    RETURN_IF_ERROR(rendezvous.Barrier(Soon()));
    if (rank == 0) testing::cuda::FailOperation(operations);
    RETURN_IF_ERROR(rendezvous.Barrier(Soon()));
    const absl::Status failure = TrainTo(*trainer, kStepsAfter).status();
    if (failure.ok()) return absl::InternalError("no process was lost");
    ASSIGN_OR_RETURN(next,
                     ConnectRendezvous({.rank = rank,
                                        .ranks = run.processes(),
                                        .local_rank = rank,
                                        .id = meeting,
                                        .rendezvous = absl::StrCat("file:", ::testing::TempDir())},
                                       kRecoveryDeadline));
    ASSIGN_OR_RETURN(std::optional<StateSnapshot> snapshot,
                     PrepareRecovery(*trainer, failure, *next));
    trainer.reset();
    RETURN_IF_ERROR(next->Barrier(Soon()));
    if (rank == 0) testing::cuda::Reset({});  // the GPU is replaced as well
    RETURN_IF_ERROR(next->Barrier(Soon()));
    ASSIGN_OR_RETURN(trainer, MakeTrainer(run, *next));
    RETURN_IF_ERROR(trainer->RestoreSnapshot(snapshot.has_value() ? &*snapshot : nullptr).status());
    ASSIGN_OR_RETURN(hashes[static_cast<size_t>(rank)], TrainTo(*trainer, kStepsAfter));
    return absl::OkStatus();
  };
  EXPECT_THAT(OnRanks(run.processes(), work), Each(IsOk()));
  return hashes;
}

class CudaRecovery : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { testing::cuda::Reset({}); }
  void TearDown() override { EXPECT_TRUE(testing::cuda::NothingIsLeft()); }
};

TEST_P(CudaRecovery, HasTheBitsOfARunThatWasLeftAloneWhereverOneIsLost) {
  const ReplicatedRun run = {.stages = GetParam(), .device = DeviceKind::kCuda};
  const std::string expected = HashOfARunThatWasLeftAlone(run, kStepsAfter);
  for (int64_t operations = 20; operations < 700; operations += 150) {
    SCOPED_TRACE(operations);
    testing::cuda::Reset({.seed = static_cast<uint64_t>(operations)});
    EXPECT_THAT(HashesWithALoss(run, operations), Each(expected));
  }
}

INSTANTIATE_TEST_SUITE_P(OfStages, CudaRecovery, ::testing::Values(1, 2));

}  // namespace
}  // namespace stagecoach::engine
