// Runs that go on with a new process in the place of one that was lost. Processes are threads.
#include "engine/train/kept_state.h"

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
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/small_run.h"
#include "tests/engine/transport/on_ranks.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// ---- The step.

using Standings = std::vector<std::optional<Standing>>;

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
  EXPECT_THAT(Agree({Standing{17}, std::nullopt, Standing{17, true}}),
              Each(absl::StatusOr<int64_t>(17)));
  EXPECT_THAT(Agree({Standing{16, true}, Standing{17}, std::nullopt}),
              Each(absl::StatusOr<int64_t>(17)));
  EXPECT_THAT(Agree({Standing{0}, std::nullopt}), Each(absl::StatusOr<int64_t>(0)));
}

TEST(AgreeOnStep, IsRefusedWhereOneCannotComeThere) {
  for (const Standings& standings : {Standings{Standing{17}, Standing{16, false}},
                                     Standings{Standing{17}, Standing{15, true}}}) {
    for (const absl::StatusOr<int64_t>& steps : Agree(standings)) {
      EXPECT_THAT(steps, StatusIs(absl::StatusCode::kAborted, HasSubstr("cannot come to step 17")));
    }
  }
  for (const absl::StatusOr<int64_t>& steps : Agree({std::nullopt, std::nullopt})) {
    EXPECT_THAT(steps, StatusIs(absl::StatusCode::kAborted, HasSubstr("no process")));
  }
}

// ---- The state.

constexpr int kKeptMicroBatches = 4;

struct Case {
  int stages = 2;
  int replicas = 2;
  bool shards_optimizer = false;
  schedule::ResultsPlace results = schedule::ResultsPlace::kBeforeSteps;

  int processes() const { return stages * replicas; }
};

absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const Case& tested, Rendezvous& rendezvous) {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.clip_norm = 0.5F;
  ASSIGN_OR_RETURN(PreparedRun run,
                   PrepareRun(SmallModel(), {.devices = tested.stages,
                                             .replication = {tested.replicas, kKeptMicroBatches,
                                                             tested.shards_optimizer},
                                             .micro_batches = kKeptMicroBatches,
                                             .micro_batch_rows = 4,
                                             .optimizer = optimizer,
                                             .results = tested.results}));
  return Trainer::Create(
      std::move(run),
      {.optimizer = optimizer, .rendezvous = &rendezvous, .deadline = absl::Minutes(1)});
}

// Trains up to a number of steps, and returns the fingerprint of all parameters.
absl::StatusOr<std::string> TrainTo(Trainer& trainer, int64_t steps) {
  const auto data = SmallData(64);
  while (trainer.steps() < steps) {
    RETURN_IF_ERROR(
        trainer.Step(*data, Rows(4 * trainer.steps(), trainer.plan().batch_rows())).status());
  }
  return trainer.ParametersHash();
}

DataPosition PositionAfter(int64_t steps) { return {.epoch = 3, .rows = steps, .loss_sum = 0.1}; }

// What each process keeps after so many steps, in the next of which one is lost.
std::vector<KeptState> KeepAllBut(const Case& tested, int lost, int64_t steps) {
  std::vector<KeptState> kept(static_cast<size_t>(tested.processes()));
  OnRanks(tested.processes(), [&](Rendezvous& rendezvous) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(tested, rendezvous));
    RETURN_IF_ERROR(TrainTo(*trainer, steps).status());
    if (rendezvous.rank() == lost) return absl::OkStatus();  // the others see its connections end
    EXPECT_THAT(TrainTo(*trainer, steps + 1), Not(IsOk()));
    EXPECT_EQ(trainer->steps(), steps);
    KeptState& own = kept[static_cast<size_t>(rendezvous.rank())];
    ASSIGN_OR_RETURN(own, trainer->Keep());
    own.position = PositionAfter(steps);
    // One of them has come to know the loss of the test data.
    if (rendezvous.rank() == (lost + 1) % tested.processes())
      own.position->figures = Figures{
          .train_loss = 0.25, .train_accuracy = 0.5, .test_loss = 0.75, .test_accuracy = 1.0};
    // And one has completed a step of which it does not know the loss.
    if (rendezvous.rank() == (lost + 2) % tested.processes()) own.position.reset();
    return absl::OkStatus();
  });
  return kept;
}

std::string HashOfARunThatWasLeftAlone(const Case& tested, int64_t steps) {
  std::string hash;
  const std::vector<absl::Status> statuses =
      OnRanks(tested.processes(), [&](Rendezvous& rendezvous) -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(tested, rendezvous));
        ASSIGN_OR_RETURN(const std::string own, TrainTo(*trainer, steps));
        if (rendezvous.rank() == 0) hash = own;
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  return hash;
}

class KeptStateTest : public ::testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(KeptStateTest, GoesOnWithTheBitsOfARunThatWasLeftAlone) {
  const Case& tested = std::get<0>(GetParam());
  const int lost = std::get<1>(GetParam());
  const std::vector<KeptState> kept = KeepAllBut(tested, lost, 2);
  const std::string expected = HashOfARunThatWasLeftAlone(tested, 4);
  const std::vector<absl::Status> statuses =
      OnRanks(tested.processes(), [&](Rendezvous& rendezvous) -> absl::Status {
        const int rank = rendezvous.rank();
        ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(tested, rendezvous));
        ASSIGN_OR_RETURN(const DataPosition position,
                         trainer->Adopt(rank == lost ? nullptr : &kept[static_cast<size_t>(rank)]));
        for (const KeptState& first : kept) {
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

INSTANTIATE_TEST_SUITE_P(All, KeptStateTest,
                         ::testing::Values(std::tuple(Case{}, 0), std::tuple(Case{}, 1),
                                           std::tuple(Case{}, 2), std::tuple(Case{}, 3),
                                           std::tuple(Case{.stages = 1, .replicas = 4}, 0),
                                           std::tuple(Case{.stages = 1, .replicas = 4}, 2)),
                         [](const ::testing::TestParamInfo<std::tuple<Case, int>>& tested) {
                           return absl::StrCat("Stages", std::get<0>(tested.param).stages, "Lost",
                                               std::get<1>(tested.param));
                         });

// Adopts what `kept` says, and expects that all refuse it.
void ExpectRefused(const std::vector<const KeptState*>& kept, const std::string& why) {
  const std::vector<absl::Status> statuses =
      OnRanks(Case().processes(), [&](Rendezvous& rendezvous) -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer({}, rendezvous));
        return trainer->Adopt(kept[static_cast<size_t>(rendezvous.rank())]).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kAborted, HasSubstr(why))));
}

TEST(KeptState, IsRefusedWhereItIsNotThatOfAllRanks) {
  const std::vector<KeptState> kept = KeepAllBut({}, 2, 1);
  std::vector<KeptState> others(3, kept[1]);
  ++others[0].steps;
  ++others[1].samples;
  others[2].position->losses_hash = "another";
  // Processes 0 and 1 are the replicas of rank 0, 2 and 3 those of rank 1.
  ExpectRefused({&kept[0], &kept[1], nullptr, nullptr}, "no replica of rank 1 is left");
  KeptState unknown = kept[0];
  unknown.position.reset();
  ExpectRefused({&unknown, nullptr, &unknown, nullptr}, "do not go on alike");
  ExpectRefused({nullptr, nullptr, nullptr, nullptr}, "no process is left");
  for (const KeptState& other : others) {
    ExpectRefused({&kept[0], &other, nullptr, &kept[3]}, "do not go on alike");
  }
}

TEST(CanLoseProcesses, IfOtherReplicasHaveAllThatALostOneHad) {
  for (const Case& tested :
       {Case{}, Case{.replicas = 1},
        Case{.shards_optimizer = true, .results = schedule::ResultsPlace::kEnd},
        Case{.results = schedule::ResultsPlace::kEnd}}) {
    const bool can = tested.replicas > 1 && tested.results == schedule::ResultsPlace::kBeforeSteps;
    const std::vector<absl::Status> statuses =
        OnRanks(tested.processes(), [&](Rendezvous& rendezvous) -> absl::Status {
          ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(tested, rendezvous));
          EXPECT_EQ(trainer->can_lose_processes(), can);
          RETURN_IF_ERROR(TrainTo(*trainer, 1).status());
          RETURN_IF_ERROR(trainer->Evaluate(*SmallData(16)).status());
          EXPECT_FALSE(trainer->may_complete_step());
          EXPECT_EQ(trainer->Keep().ok(), can);
          EXPECT_THAT(trainer->CompleteStep(), StatusIs(absl::StatusCode::kFailedPrecondition));
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

}  // namespace
}  // namespace stagecoach::engine
