#ifndef STAGECOACH_PARTITION_COST_CLUSTER_H_
#define STAGECOACH_PARTITION_COST_CLUSTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schedule/ir/schedule.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {

struct ClusterDevice {
  std::string name;          // for people; unique
  double speed = 1.0;        // relative to the profiled device; times are divided by it
  int64_t memory_bytes = 0;  // 0: no limit
  int host = 0;
  int threads = 0;                        // of a CPU device; 0: not said, as for other devices
  std::vector<std::string> members = {};  // of a group of devices (GroupDevices), by name

  friend bool operator==(const ClusterDevice&, const ClusterDevice&) = default;
};

// A connection that is neither of the two usual ones (Cluster).
struct ClusterLink {
  int from = 0;  // devices; the same in both directions
  int to = 0;
  schedule::Link link;

  friend bool operator==(const ClusterLink&, const ClusterLink&) = default;
};

// The devices that a model may be spread over, in the order in which a pipeline passes them. Links
// take no time unless they are set.
struct Cluster {
  std::vector<ClusterDevice> devices;
  schedule::Link within_host;
  schedule::Link between_hosts;
  std::vector<ClusterLink> exceptions;
  schedule::HostLink host_link;  // of each device, for stashes that are moved (Plan::offload)
  // True if a device computes while its messages are under way. If not, it sends and receives in
  // between, and the slowest stage is the one that takes longest for all three together.
  bool overlaps_messages = true;
  // How devices perform the transfers of a schedule (NCCL: in groups). Decides when messages pass,
  // and from when on they have buffers.
  schedule::Transfers transfers = schedule::Transfers::kSeparate;

  int size() const { return static_cast<int>(devices.size()); }
  schedule::Link LinkBetween(int from, int to) const;
  bool limits_memory() const;
  // Returns those devices alone, in that order, with the links between them. Pre-condition: they
  // are different devices of the cluster.
  Cluster Keep(absl::Span<const int> kept) const;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

inline constexpr int kMaxDevices = 4096;
inline constexpr double kMaxSpeedRatio = 1e6;
inline constexpr int kMaxDeviceThreads = 256;
inline constexpr int64_t kMaxDeviceBytes = int64_t{1} << 50;

// Returns equal devices "0", "1", ... on one host, whose links take no time.
Cluster UniformCluster(int devices, int64_t memory_bytes = 0);

// Returns InvalidArgument, naming the device or link and the allowed range: no device or more than
// kMaxDevices, a duplicate or empty name, a speed outside [1 / kMaxSpeedRatio, kMaxSpeedRatio], a
// size, time or number of threads that is negative or above its limit (kMaxDeviceBytes,
// schedule::kMaxTimeNs, kMaxDeviceThreads), a link to itself or to a nonexistent device, or a
// duplicate link.
absl::Status CheckCluster(const Cluster& cluster);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_CLUSTER_H_
