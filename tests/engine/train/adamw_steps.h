#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_ADAMW_STEPS_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_ADAMW_STEPS_H_

#include "engine/data/dataset.h"
#include "engine/model/model.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// Takes three steps of AdamW, each with all of `data`, and expects of each that
// - the gradient is that of `exact`, a trainer of the same model in fp32, with the same parameters:
//   the norm of its error over all parameters is at most `tolerance` times its own;
// - what it made of the gradients is what AdamW makes in double precision, to the digits of
//   float32, in which parameters and states are in every precision.
// Gradients are what the first moments say, in checkpoints before and after. The parameters after
// several steps alone would say little: an element whose gradient is smaller than its error may
// move the other way, as far as any other.
//
// Both start with the parameters of `trainer`, and have its `options` but for the precision: a
// constant learning rate, and no clipping.
void ExpectStepsOfAdamW(Trainer& trainer, Trainer& exact, const Model& model, const Dataset& data,
                        const TrainerOptions& options, double tolerance);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_ADAMW_STEPS_H_
