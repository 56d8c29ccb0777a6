#ifndef STAGECOACH_ENGINE_TRAIN_FINGERPRINT_H_
#define STAGECOACH_ENGINE_TRAIN_FINGERPRINT_H_

#include <string>

#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// Returns everything that decides what a run trains and which rank exchanges what with which, a
// line each, such as "seed: 4", in the same order for all runs: TrainerOptions::fingerprint, from
// which the rest may follow; the layers and the loss as they describe themselves, the parameters
// and their initialization, the plan with the order of every rank's actions, and the options that
// matter. Processes of one run have equal ones. Long values are hashed.
std::string FingerprintOf(const PreparedRun& run, const TrainerOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_FINGERPRINT_H_
