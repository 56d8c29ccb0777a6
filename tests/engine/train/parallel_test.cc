#include "engine/train/parallel.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "engine/comm/rendezvous.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/fit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/on_ranks.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;

constexpr int64_t kParallelBatchRows = 32;

std::string HashAfterTraining(Trainer& trainer) {
  const TrainTest data = {SmallData(4 * kParallelBatchRows), SmallData(10)};
  EXPECT_OK(Fit(trainer, data, {}));
  return trainer.ParametersHash().value();
}

TEST(DataParallel, DealsEachReplicaAnEqualShareAsOneMicroBatch) {
  ASSERT_OK_AND_ASSIGN(const auto trainer, DataParallel(SmallModel(), 2, kParallelBatchRows));
  EXPECT_EQ(trainer->plan().replicas(), 2);
  EXPECT_EQ(trainer->plan().num_ranks(), 1);
  EXPECT_EQ(trainer->plan().micro_batch_rows, 16);
  EXPECT_EQ(trainer->plan().batch_rows(), kParallelBatchRows);
}

TEST(DataParallel, RefusesABatchThatItCannotDivide) {
  EXPECT_THAT(DataParallel(SmallModel(), 4, 30), IsRefused("30 rows"));
  EXPECT_THAT(DataParallel(SmallModel(), 0, 32), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(DataParallel, TakesAnyNumberOfReplicas) {
  for (const int replicas : {3, 5, 7}) {
    const int64_t rows = 6 * replicas;
    const auto hash_of = [&](Trainer& trainer) {
      EXPECT_OK(trainer.Step(*SmallData(rows), Rows(0, rows)));
      return trainer.ParametersHash().value();
    };
    const std::string hash = hash_of(*DataParallel(SmallModel(), replicas, rows).value());
    EXPECT_EQ(hash, hash_of(*MakeTrainer(SmallModel(),
                                         EvenPlan(SmallModel(), 2, "1f1b", replicas, 6, 0,
                                                  {.gradient_blocks = replicas}),
                                         {})))
        << replicas;
  }
}

TEST(DistributedDataParallel, TrainsAsDataParallelDoes) {
  const std::string expected =
      HashAfterTraining(*DataParallel(SmallModel(), 4, kParallelBatchRows).value());
  std::vector<std::string> hashes(4);
  EXPECT_THAT(OnRanks(4,
                      [&](Rendezvous& own) -> absl::Status {
                        ASSIGN_OR_RETURN(
                            const auto trainer,
                            DistributedDataParallel(SmallModel(), own, kParallelBatchRows));
                        hashes[static_cast<size_t>(own.rank())] = HashAfterTraining(*trainer);
                        return absl::OkStatus();
                      }),
              Each(IsOk()));
  EXPECT_THAT(hashes, Each(expected));
}

TEST(DistributedDataParallel, TellsTheOthersOfABatchThatItCannotDivide) {
  const std::vector<absl::Status> ends = OnRanks(2, [](Rendezvous& own) {
    return DistributedDataParallel(SmallModel(), own, own.rank() == 0 ? 32 : 31).status();
  });
  EXPECT_THAT(ends[0], StatusIs(absl::StatusCode::kAborted, "31 rows"));
  EXPECT_THAT(ends[1], IsRefused("31 rows"));
}

TEST(PipelineParallel, TellsTheOthersOfABatchThatItCannotDivide) {
  const std::vector<absl::Status> ends = OnRanks(2, [](Rendezvous& own) {
    return PipelineParallel(SmallModel(), 2, 4, own.rank() == 0 ? 32 : 31, {.rendezvous = &own})
        .status();
  });
  EXPECT_THAT(ends[0], StatusIs(absl::StatusCode::kAborted, "31 rows"));
}

TEST(PipelineParallel, TrainsOnStagesAsOnOneDevice) {
  const auto hash_of = [](int stages) {
    const auto trainer = PipelineParallel(SmallModel(), stages, /*micro_batches=*/4, 32).value();
    EXPECT_EQ(trainer->plan().num_stages(), stages);
    EXPECT_EQ(trainer->plan().micro_batches(), 4);
    return HashAfterTraining(*trainer);
  };
  EXPECT_EQ(hash_of(3), hash_of(1));
}

// The device of the middle stage has no memory of its own: nothing is summed, clipped or updated
// there.
TEST(Replicas, MayHaveAStageWithoutParameters) {
  const ProbeHooks nothing;
  const Model model = {.input = Shape{kSmallFeatures},
                       .layers = {Linear(8), Probe(&nothing), Linear(kSmallClasses)}};
  for (const bool shards : {false, true}) {
    for (const float clip_norm : {0.0F, 0.05F}) {
      const auto hash_of = [&](int stages, const partition::Replication& replication) {
        TrainerOptions options;
        options.optimizer.clip_norm = clip_norm;
        const auto trainer = MakeTrainer(
            model, EvenPlan(model, stages, "1f1b", 4, 8, /*chunks=*/1, replication), options);
        return HashAfterTraining(*trainer);
      };
      EXPECT_EQ(hash_of(3, {.replicas = 2, .gradient_blocks = 2, .shards_optimizer = shards}),
                hash_of(1, {.gradient_blocks = 2}));
    }
  }
}

}  // namespace
}  // namespace stagecoach::engine
