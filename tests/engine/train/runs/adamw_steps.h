#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_ADAMW_STEPS_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_ADAMW_STEPS_H_

#include "engine/data/dataset.h"
#include "engine/models/model.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// Takes three steps of AdamW, each with all of `data`, and expects that for each
// - the gradient is that of `exact`, a trainer of the same model in fp32, with the same parameters:
//   the norm of its error over all parameters is at most `tolerance` times its own;
// - its update is that of AdamW in double precision on these gradients, to the digits of float32,
//   in which parameters and states are stored in every precision.
// Gradients are computed from the first moments in checkpoints before and after. The parameters
// after several steps alone would say little: an element whose gradient is smaller than its error
// may move the other way, as far as any other.
//
// Both start with the parameters of `trainer`, and have its `options` except the precision: a
// constant learning rate, and no clipping.
void ExpectStepsOfAdamW(Trainer& trainer, Trainer& exact, const Model& model, const Dataset& data,
                        const TrainerOptions& options, double tolerance);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_ADAMW_STEPS_H_
