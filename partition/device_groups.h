#ifndef STAGECOACH_PARTITION_DEVICE_GROUPS_H_
#define STAGECOACH_PARTITION_DEVICE_GROUPS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/cluster.h"
#include "schedule/costs.h"

namespace stagecoach::partition {

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

// Consecutive devices that share something: one of each replica of a rank, or those that share each
// layer (tensor parallelism).
struct DeviceGroup {
  std::vector<int> devices;                // of the cluster
  double speed = 1.0;                      // of the slowest
  int64_t memory_bytes = kUnlimitedBytes;  // of the smallest
  schedule::Link link;                     // the slowest between two of them
};

// Groups of that size take the devices of a cluster in turn. Devices beyond the last whole group
// are in none.
std::vector<DeviceGroup> GroupsOf(const Cluster& cluster, int size);

// The slowest link between a device of one group and that in the same place of the other.
schedule::Link SlowestBetween(const DeviceGroup& from, const DeviceGroup& to,
                              const Cluster& cluster);

// A cluster whose devices are those groups, called after their first device, "a100.8+7", and the
// slowest link within any of them.
struct GroupedCluster {
  Cluster cluster;
  schedule::Link within;
};

// What a group sends to another goes over the links between their devices, all at once: with
// `divides_messages` each takes its part of a message, else each sends a message of that size.
// InvalidArgument: the size does not divide the devices, or a group would be on several hosts.
absl::StatusOr<GroupedCluster> GroupDevices(const Cluster& cluster, int size,
                                            bool divides_messages);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_DEVICE_GROUPS_H_
