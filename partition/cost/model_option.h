#ifndef STAGECOACH_PARTITION_COST_MODEL_OPTION_H_
#define STAGECOACH_PARTITION_COST_MODEL_OPTION_H_

#include <optional>
#include <string>

#include "partition/cost/cluster.h"
#include "partition/cost/profile.h"

namespace stagecoach::partition {

// One of several ways to compute the same model, such as its kind of attention, how many devices
// share each layer, or whether stashes are moved to the host: the resulting costs of the layers and
// grouping of the devices.
struct ModelOption {
  std::string name;  // "flash attention, tensor parallelism 8"; "" for the only one
  Profile profile;
  Cluster cluster;
  // Plan::tensor_parts of a run: the profile is of one part, and the cluster's devices are groups.
  int tensor_parts = 1;
  std::optional<double> offload = {};  // replaces the request's (Plan::offload)
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_MODEL_OPTION_H_
