#include "tests/engine/train/runs/replicated_run.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/train/prepared_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/on_ranks.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

// Of a step, each a gradient block.
int MicroBatchesOf(const ReplicatedRun& run) { return run.replicas % 3 == 0 ? 6 : 4; }

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const ReplicatedRun& run,
                                                     Rendezvous& rendezvous) {
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.clip_norm = 0.5F;
  optimizer.ema_decay = run.ema_decay;
  const DeviceSpec device = {.kind = run.device};
  ASSIGN_OR_RETURN(PreparedRun prepared,
                   PrepareRun(TinyModel(), {.devices = run.stages,
                                            .replication = {run.replicas, MicroBatchesOf(run),
                                                            run.shards_optimizer},
                                            .micro_batches = MicroBatchesOf(run),
                                            .micro_batch_rows = 4,
                                            .optimizer = optimizer,
                                            .device = device,
                                            .results = run.results}));
  return Trainer::Create(std::move(prepared), {.optimizer = optimizer,
                                               .device = device,
                                               .rendezvous = &rendezvous,
                                               .deadline = absl::Minutes(5)});
}

absl::StatusOr<std::string> TrainTo(Trainer& trainer, int64_t steps) {
  const auto data = SmallData(64);
  while (trainer.steps() < steps) {
    RETURN_IF_ERROR(
        trainer.Step(*data, Rows(4 * trainer.steps(), trainer.plan().batch_rows())).status());
  }
  ASSIGN_OR_RETURN(std::string hash, trainer.ParametersHash());
  RETURN_IF_ERROR(trainer.WithAverages([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::string of_averages, trainer.ParametersHash());
    hash += of_averages;
    return absl::OkStatus();
  }));
  return hash;
}

std::string HashOfARunThatWasLeftAlone(const ReplicatedRun& run, int64_t steps) {
  std::string hash;
  const std::vector<absl::Status> statuses =
      OnRanks(run.processes(), [&](Rendezvous& rendezvous) -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(run, rendezvous));
        ASSIGN_OR_RETURN(const std::string own, TrainTo(*trainer, steps));
        if (rendezvous.rank() == 0) hash = own;
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, ::testing::Each(::stagecoach::testing::IsOk()));
  return hash;
}

}  // namespace stagecoach::engine
