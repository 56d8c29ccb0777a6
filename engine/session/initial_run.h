#ifndef STAGECOACH_ENGINE_SESSION_INITIAL_RUN_H_
#define STAGECOACH_ENGINE_SESSION_INITIAL_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "engine/session/run_config.h"

// Runs that start from the parameters of another run of this program.
namespace stagecoach::engine {

// Returns whether the path is a folder of checkpoints, or one of them.
bool IsSavedRun(const std::string& path);

// If RunConfig::initial_parameters are those of a saved run, takes from its newest checkpoint what
// the configuration leaves open and its model needs: the model, the size of the default network,
// the tokenizer and chat template, the vocabulary and context, the side of images and the loss.
// RunConfig::initial_parameters is its path then. `is_silent`: no notice names newer checkpoints
// that are damaged.
absl::Status TakeInitialRun(RunConfig& config, bool is_silent);

// Returns an error, in one line that says what to do, if the model or the data of a run do not fit
// the checkpoint that it is to start from.
absl::Status CheckStartsFrom(const RunConfig& config, const TrainingRun& run);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_INITIAL_RUN_H_
