#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_EMA_RUNS_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_EMA_RUNS_H_

#include <map>
#include <string>
#include <vector>

#include "engine/runtime/device/device_spec.h"
#include "engine/train/trainer.h"

// Moving averages of parameters (Optimizer::ema_decay) in training, on devices of any kind.
namespace stagecoach::engine {

using ParameterValues = std::map<std::string, std::vector<float>>;

// Returns the values of all parameters, by name.
ParameterValues ValuesOf(Trainer& trainer);
// Returns their averages.
ParameterValues AveragesOf(Trainer& trainer);

// Expects the averages that follow in double precision from the parameters after each step, that
// evaluations are those of a run whose parameters have these values, and that training is the same
// as without averages.
void ExpectAveragesToFollowTheirFormula(const DeviceSpec& device);

// Expects those of PyTorch's AveragedModel (tests/fixtures/ema), and the outputs that follow.
void ExpectAveragesToMatchPyTorch(const DeviceSpec& device);

// Expects the same bits of parameters, averages and evaluations for all partitions, replicas and
// shards of the optimizer, and the predicted memory. `devices`: the most of a run.
void ExpectAveragesToHaveTheSameBitsEverywhere(const DeviceSpec& device, int devices);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_EMA_RUNS_H_
