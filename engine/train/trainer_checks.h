#ifndef STAGECOACH_ENGINE_TRAIN_TRAINER_CHECKS_H_
#define STAGECOACH_ENGINE_TRAIN_TRAINER_CHECKS_H_

#include "absl/status/status.h"
#include "engine/runtime/rank_group.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "partition/plan/plan.h"

namespace stagecoach::engine {

// Returns the devices of a plan's ranks, as a trainer with these options connects them; without a
// fingerprint.
RankGroupOptions GroupOptionsOf(const partition::Plan& plan, const TrainerOptions& options);

// Returns where results go by default: to all processes, if there are several.
schedule::ResultsPlace ResultsOf(const TrainerOptions& options);

// Checks what can be refused before the model is analyzed; errors are those of Trainer::Create.
absl::Status CheckTrainer(const partition::Plan& plan, const TrainerOptions& options);

// Passes on the status of what is to become a trainer: if it is an error, the other processes need
// not wait for this one.
absl::Status TellOthers(const TrainerOptions& options, absl::Status status);

// Returns InvalidArgument unless the run was prepared for the optimizer, devices and exchange of
// the options, and has something to train.
absl::Status CheckPreparedFor(const PreparedRun& run, const TrainerOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_TRAINER_CHECKS_H_
