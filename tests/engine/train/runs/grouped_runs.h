#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_GROUPED_RUNS_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_GROUPED_RUNS_H_

#include "engine/runtime/device/device_spec.h"

// What groups of parameters (Model::parameter_rules) do in training, on devices of any kind.
namespace stagecoach::engine {

// Expects PyTorch's results with its groups of parameters, by AdamW and SGD.
void ExpectGroupsToMatchPyTorch(const DeviceSpec& device);

// Expects the same bits for all partitions, replicas and shards of the optimizer, the predicted
// memory, and that frozen parameters keep their bits while the others are trained as if they had
// been frozen by a learning rate of 0. `devices`: the most of a run.
void ExpectGroupsToHaveTheSameBitsEverywhere(const DeviceSpec& device, int devices);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_GROUPED_RUNS_H_
