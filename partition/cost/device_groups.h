#ifndef STAGECOACH_PARTITION_COST_DEVICE_GROUPS_H_
#define STAGECOACH_PARTITION_COST_DEVICE_GROUPS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/cost/cluster.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/profile.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

// Consecutive devices that share something: the replicas of a rank, or the devices that share each
// layer (tensor parallelism).
struct DeviceGroup {
  std::vector<int> devices;                // of the cluster
  double speed = 1.0;                      // of the slowest
  int64_t memory_bytes = kUnlimitedBytes;  // of the smallest
  schedule::Link link;                     // the slowest between two of them
};

// Divides the devices of a cluster, in order, into groups of that size. Devices beyond the last
// whole group are in none.
std::vector<DeviceGroup> GroupsOf(const Cluster& cluster, int size);

// Returns the slowest link between a device of one group and its counterpart in the other.
schedule::Link SlowestBetween(const DeviceGroup& from, const DeviceGroup& to,
                              const Cluster& cluster);

// A cluster whose devices are groups, named after their first device and the number of others, such
// as "a100.8+7", and the slowest link within any of them.
struct GroupedCluster {
  Cluster cluster;
  schedule::Link within;
};

// Groups the devices of a cluster. What a group sends to another passes over the links between
// their devices concurrently: each sends a message divided by `message_parts`. InvalidArgument: the
// size does not divide the devices, or a group would span several hosts.
absl::StatusOr<GroupedCluster> GroupDevices(const Cluster& cluster, int size, int message_parts);

// Adds to F, B and W of a layer what the exchanges of the devices of a group take
// (LayerCost::forward_exchange), whose messages pass over that link.
void AddExchangeTimes(int devices, const schedule::Link& link, LayerCost& layer);
// Returns the profile with that added to every layer.
Profile WithExchangeTimes(Profile profile, int devices, const schedule::Link& link);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_DEVICE_GROUPS_H_
