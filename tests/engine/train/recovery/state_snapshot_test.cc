// Runs that continue with a new process in place of one that was lost. Processes are threads.
#include "engine/train/recovery/state_snapshot.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/on_ranks.h"
#include "tests/engine/train/runs/replicated_run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::Not;

// ---- The step at which the run continues.

using Standings = std::vector<std::optional<StepProgress>>;

std::vector<absl::StatusOr<int64_t>> Agree(const Standings& standings) {
  std::vector<absl::StatusOr<int64_t>> steps(standings.size());
  OnRanks(static_cast<int>(standings.size()), [&](Rendezvous& rendezvous) {
    const auto rank = static_cast<size_t>(rendezvous.rank());
    steps[rank] = AgreeOnStep(rendezvous, standings[rank], absl::Minutes(1));
    return absl::OkStatus();
  });
  return steps;
}

TEST(AgreeOnStep, IsTheLastThatAllHaveDoneOrCanDo) {
  EXPECT_THAT(Agree({StepProgress{17}, std::nullopt, StepProgress{17, true}}),
              Each(absl::StatusOr<int64_t>(17)));
  EXPECT_THAT(Agree({StepProgress{16, true}, StepProgress{17}, std::nullopt}),
              Each(absl::StatusOr<int64_t>(17)));
  EXPECT_THAT(Agree({StepProgress{0}, std::nullopt}), Each(absl::StatusOr<int64_t>(0)));
}

TEST(AgreeOnStep, IsRefusedWhereOneCannotComeThere) {
  for (const Standings& standings : {Standings{StepProgress{17}, StepProgress{16, false}},
                                     Standings{StepProgress{17}, StepProgress{15, true}}}) {
    for (const absl::StatusOr<int64_t>& steps : Agree(standings)) {
      EXPECT_THAT(steps, StatusIs(absl::StatusCode::kAborted, "cannot come to step 17"));
    }
  }
  for (const absl::StatusOr<int64_t>& steps : Agree({std::nullopt, std::nullopt})) {
    EXPECT_THAT(steps, StatusIs(absl::StatusCode::kAborted, "no process"));
  }
}

// ---- The state that is restored.

DataPosition PositionAfter(int64_t steps) { return {.epoch = 3, .rows = steps, .loss_sum = 0.1}; }

// Returns the snapshot of each process after N steps, when one is lost in the next step or, if
// parameters have averages, in an evaluation of these.
std::vector<StateSnapshot> KeepAllBut(const ReplicatedRun& tested, int lost, int64_t steps) {
  std::vector<StateSnapshot> snapshot(static_cast<size_t>(tested.processes()));
  OnRanks(tested.processes(), [&](Rendezvous& rendezvous) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(tested, rendezvous));
    RETURN_IF_ERROR(TrainTo(*trainer, steps).status());
    const bool is_lost = rendezvous.rank() == lost;  // the others see its connections close
    if (tested.ema_decay > 0.0F) {
      const absl::Status ended = trainer->WithAverages([&]() -> absl::Status {
        RETURN_IF_ERROR(trainer->ParametersHash().status());  // all have them in place
        return is_lost ? absl::OkStatus() : trainer->Evaluate(*SmallData(64)).status();
      });
      EXPECT_EQ(ended.ok(), is_lost);
    }
    if (is_lost) return absl::OkStatus();
    EXPECT_THAT(TrainTo(*trainer, steps + 1), Not(IsOk()));
    EXPECT_EQ(trainer->steps(), steps);
    StateSnapshot& own = snapshot[static_cast<size_t>(rendezvous.rank())];
    ASSIGN_OR_RETURN(own, trainer->TakeSnapshot());
    own.position = PositionAfter(steps);
    // One of them already knows the loss of the test data.
    if (rendezvous.rank() == (lost + 1) % tested.processes())
      own.position->metrics = Metrics{
          .train_loss = 0.25, .train_accuracy = 0.5, .test_loss = 0.75, .test_accuracy = 1.0};
    // Another one has completed a step whose loss it does not know.
    if (rendezvous.rank() == (lost + 2) % tested.processes()) own.position.reset();
    return absl::OkStatus();
  });
  return snapshot;
}

class KeptStateTest : public ::testing::TestWithParam<std::tuple<ReplicatedRun, int>> {};

TEST_P(KeptStateTest, GoesOnWithTheBitsOfARunThatWasLeftAlone) {
  const ReplicatedRun& tested = std::get<0>(GetParam());
  const int lost = std::get<1>(GetParam());
  const std::vector<StateSnapshot> snapshot = KeepAllBut(tested, lost, 2);
  const std::string expected = HashOfARunThatWasLeftAlone(tested, 4);
  const std::vector<absl::Status> statuses =
      OnRanks(tested.processes(), [&](Rendezvous& rendezvous) -> absl::Status {
        const int rank = rendezvous.rank();
        ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(tested, rendezvous));
        ASSIGN_OR_RETURN(const DataPosition position,
                         trainer->RestoreSnapshot(
                             rank == lost ? nullptr : &snapshot[static_cast<size_t>(rank)]));
        for (const StateSnapshot& first : snapshot) {
          if (!first.position.has_value()) continue;
          EXPECT_EQ(position, first.position);
          break;
        }
        EXPECT_EQ(trainer->steps(), 2);
        ASSIGN_OR_RETURN(const std::string hash, TrainTo(*trainer, 4));
        EXPECT_EQ(hash, expected);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(
    All, KeptStateTest,
    ::testing::Values(std::tuple(ReplicatedRun{}, 0), std::tuple(ReplicatedRun{}, 1),
                      std::tuple(ReplicatedRun{}, 2), std::tuple(ReplicatedRun{}, 3),
                      std::tuple(ReplicatedRun{.stages = 1, .replicas = 4}, 0),
                      std::tuple(ReplicatedRun{.stages = 1, .replicas = 4}, 2),
                      std::tuple(ReplicatedRun{.stages = 1, .replicas = 3}, 1),
                      std::tuple(ReplicatedRun{.ema_decay = 0.5F}, 1)),
    [](const ::testing::TestParamInfo<std::tuple<ReplicatedRun, int>>& tested) {
      const ReplicatedRun& run = std::get<0>(tested.param);
      return absl::StrCat("Stages", run.stages, "Replicas", run.replicas, "Lost",
                          std::get<1>(tested.param), run.ema_decay > 0.0F ? "WithAverages" : "");
    });

// Restores `snapshot`, and expects that all refuse it.
void ExpectRefused(const std::vector<const StateSnapshot*>& snapshot, const std::string& why) {
  const std::vector<absl::Status> statuses =
      OnRanks(ReplicatedRun().processes(), [&](Rendezvous& rendezvous) -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer({}, rendezvous));
        return trainer->RestoreSnapshot(snapshot[static_cast<size_t>(rendezvous.rank())]).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kAborted, why)));
}

TEST(StateSnapshot, IsRefusedWhereItIsNotThatOfAllRanks) {
  const std::vector<StateSnapshot> snapshot = KeepAllBut({}, 2, 1);
  std::vector<StateSnapshot> others(3, snapshot[1]);
  ++others[0].steps;
  ++others[1].samples;
  others[2].position->losses_hash = "another";
  // Processes 0 and 1 are the replicas of rank 0, 2 and 3 those of rank 1.
  ExpectRefused({&snapshot[0], &snapshot[1], nullptr, nullptr}, "no replica of rank 1 is left");
  StateSnapshot unknown = snapshot[0];
  unknown.position.reset();
  ExpectRefused({&unknown, nullptr, &unknown, nullptr}, "disagree on how to recover");
  ExpectRefused({nullptr, nullptr, nullptr, nullptr}, "no process is left");
  for (const StateSnapshot& other : others) {
    ExpectRefused({&snapshot[0], &other, nullptr, &snapshot[3]}, "disagree on how to recover");
  }
}

TEST(CanLoseProcesses, IfOtherReplicasHaveAllThatALostOneHad) {
  for (const ReplicatedRun& tested :
       {ReplicatedRun{}, ReplicatedRun{.replicas = 1},
        ReplicatedRun{.shards_optimizer = true, .results = schedule::ResultsPlace::kEnd},
        ReplicatedRun{.results = schedule::ResultsPlace::kEnd}}) {
    const bool can = tested.replicas > 1 && tested.results == schedule::ResultsPlace::kBeforeSteps;
    const std::vector<absl::Status> statuses =
        OnRanks(tested.processes(), [&](Rendezvous& rendezvous) -> absl::Status {
          ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(tested, rendezvous));
          EXPECT_EQ(trainer->can_lose_processes(), can);
          RETURN_IF_ERROR(TrainTo(*trainer, 1).status());
          RETURN_IF_ERROR(trainer->Evaluate(*SmallData(16)).status());
          EXPECT_FALSE(trainer->may_complete_step());
          EXPECT_EQ(trainer->TakeSnapshot().ok(), can);
          EXPECT_THAT(trainer->CompleteStep(), StatusIs(absl::StatusCode::kFailedPrecondition));
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

}  // namespace
}  // namespace stagecoach::engine
