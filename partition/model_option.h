#ifndef STAGECOACH_PARTITION_MODEL_OPTION_H_
#define STAGECOACH_PARTITION_MODEL_OPTION_H_

#include <string>

#include "partition/cluster.h"
#include "partition/profile.h"

namespace stagecoach::partition {

// One of several ways to compute the same model, such as its kind of attention or how many devices
// share each layer: what layers then take, and the devices as they are then grouped.
struct ModelOption {
  std::string name;  // "flash attention, tensor parallelism 8"; "" for the only one
  Profile profile;
  Cluster cluster;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_MODEL_OPTION_H_
