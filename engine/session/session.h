#ifndef STAGECOACH_ENGINE_SESSION_SESSION_H_
#define STAGECOACH_ENGINE_SESSION_SESSION_H_

#include "absl/status/statusor.h"
#include "engine/session/predict/prediction.h"
#include "engine/session/predict_config.h"
#include "engine/session/run_config.h"
#include "engine/session/training_hooks.h"
#include "engine/session/training_observer.h"

// What the command line does, for programs: each of these functions does the whole work of a
// command from one configuration. They print nothing: notices go to RunConfig::notices, and an
// error has a class (base/error_class.h).
namespace stagecoach::engine {

// Trains a model: loads the data, reads the model, plans over the devices, trains, evaluates and
// saves, as the configuration says. If a launcher has started this process as one of several
// (engine/comm/launch.h), it trains its part of the run. The functions of `hooks` are called from
// this thread.
absl::StatusOr<TrainingOutcome> Train(RunConfig config, const TrainingHooks& hooks = {});

// Runs the model of a checkpoint forward over data, over the fewest devices that have enough memory
// unless their number is given. Cancelled: RunConfig::wants_stop stopped it.
absl::StatusOr<Prediction> Predict(PredictConfig config, const PredictHooks& hooks = {});

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_SESSION_H_
