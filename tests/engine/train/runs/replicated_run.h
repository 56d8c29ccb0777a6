#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_REPLICATED_RUN_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_REPLICATED_RUN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/comm/rendezvous.h"
#include "engine/runtime/device/device_spec.h"
#include "engine/train/trainer.h"
#include "schedule/transforms/lowering.h"

// Runs of TinyModel in one process per device that may lose one process.
namespace stagecoach::engine {

struct ReplicatedRun {
  int stages = 2;
  int replicas = 2;
  bool shards_optimizer = false;
  schedule::ResultsPlace results = schedule::ResultsPlace::kBeforeSteps;
  DeviceKind device = DeviceKind::kCpu;
  float ema_decay = 0.0F;

  int processes() const { return stages * replicas; }
};

// Makes the trainer of one process; must be called by all. It uses AdamW with clipping.
absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const ReplicatedRun& run,
                                                     Rendezvous& rendezvous);

// Trains up to a number of steps, and returns the fingerprints of all parameters and their
// averages.
absl::StatusOr<std::string> TrainTo(Trainer& trainer, int64_t steps);

// Returns the fingerprints of a run that loses no process.
std::string HashOfARunThatWasLeftAlone(const ReplicatedRun& run, int64_t steps);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_REPLICATED_RUN_H_
