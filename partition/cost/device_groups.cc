#include "partition/cost/device_groups.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace stagecoach::partition {
namespace {

using schedule::Link;

// Returns the slower of both latencies and bandwidths.
Link Slower(const Link& a, const Link& b) {
  Link slower{.latency_ns = std::max(a.latency_ns, b.latency_ns),
              .bytes_per_second = std::min(a.bytes_per_second, b.bytes_per_second)};
  // 0 is infinitely fast.
  if (a.bytes_per_second == 0) slower.bytes_per_second = b.bytes_per_second;
  if (b.bytes_per_second == 0) slower.bytes_per_second = a.bytes_per_second;
  return slower;
}

// Devices that are not all on one host have neighbors that are not, so it is enough to check these,
// and the exceptional links.
Link SlowestWithin(absl::Span<const int> devices, const Cluster& cluster) {
  Link slowest;
  for (size_t i = 0; i + 1 < devices.size(); ++i) {
    slowest = Slower(slowest, cluster.LinkBetween(devices[i], devices[i + 1]));
  }
  const auto is_within = [&](int device) {
    return device >= devices.front() && device <= devices.back();
  };
  for (const ClusterLink& own : cluster.exceptions) {
    if (is_within(own.from) && is_within(own.to)) slowest = Slower(slowest, own.link);
  }
  return slowest;
}

DeviceGroup GroupOf(const Cluster& cluster, int first, int size) {
  DeviceGroup own;
  for (int i = 0; i < size; ++i) {
    const ClusterDevice& device = cluster.devices[static_cast<size_t>(first + i)];
    own.devices.push_back(first + i);
    own.speed = i == 0 ? device.speed : std::min(own.speed, device.speed);
    if (device.memory_bytes > 0) own.memory_bytes = std::min(own.memory_bytes, device.memory_bytes);
  }
  own.link = SlowestWithin(own.devices, cluster);
  return own;
}

}  // namespace

std::vector<DeviceGroup> GroupsOf(const Cluster& cluster, int size) {
  std::vector<DeviceGroup> groups;
  for (int first = 0; first + size <= cluster.size(); first += size) {
    groups.push_back(GroupOf(cluster, first, size));
  }
  return groups;
}

Link SlowestBetween(const DeviceGroup& from, const DeviceGroup& to, const Cluster& cluster) {
  Link slowest;
  for (size_t i = 0; i < from.devices.size(); ++i) {
    slowest = Slower(slowest, cluster.LinkBetween(from.devices[i], to.devices[i]));
  }
  return slowest;
}

absl::StatusOr<GroupedCluster> GroupDevices(const Cluster& cluster, int size, int message_parts) {
  if (cluster.size() % size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups of ", size, " devices: there are ", cluster.size()));
  }
  if (size == 1) return GroupedCluster{.cluster = cluster, .within = {}};
  GroupedCluster grouped = {.cluster = cluster, .within = {}};
  Cluster& own = grouped.cluster;
  own.devices.clear();
  own.exceptions.clear();
  const std::vector<DeviceGroup> groups = GroupsOf(cluster, size);
  for (const DeviceGroup& group : groups) {
    const ClusterDevice& first = cluster.devices[static_cast<size_t>(group.devices.front())];
    const ClusterDevice& last = cluster.devices[static_cast<size_t>(group.devices.back())];
    for (const int device : group.devices) {
      if (cluster.devices[static_cast<size_t>(device)].host == first.host) continue;
      return absl::InvalidArgumentError(absl::StrCat("groups of ", size, " devices: ", first.name,
                                                     " to ", last.name, " are not on one host"));
    }
    own.devices.push_back(
        {.name = absl::StrCat(first.name, "+", size - 1),
         .speed = group.speed,
         .memory_bytes = group.memory_bytes == kUnlimitedBytes ? 0 : group.memory_bytes,
         .host = first.host});
    for (const int device : group.devices) {
      own.devices.back().members.push_back(cluster.devices[static_cast<size_t>(device)].name);
    }
    grouped.within = Slower(grouped.within, group.link);
  }
  const auto all_at_once = [&](Link link) {
    link.bytes_per_second *= message_parts;
    return link;
  };
  own.within_host = all_at_once(cluster.within_host);
  own.between_hosts = all_at_once(cluster.between_hosts);
  std::set<std::pair<int, int>> pairs;
  for (const ClusterLink& exception : cluster.exceptions) {
    const auto [from, to] = std::minmax({exception.from / size, exception.to / size});
    if (from == to || !pairs.emplace(from, to).second) continue;
    own.exceptions.push_back(
        {.from = from,
         .to = to,
         .link = all_at_once(SlowestBetween(groups[static_cast<size_t>(from)],
                                            groups[static_cast<size_t>(to)], cluster))});
  }
  return grouped;
}

void AddExchangeTimes(int devices, const schedule::Link& link, LayerCost& layer) {
  const int messages = std::bit_width(static_cast<unsigned>(devices)) - 1;  // of a round
  const auto time_ns = [&](const PartExchange& exchange) {
    const double passing_ns =
        link.bytes_per_second > 0
            ? 1e9 * static_cast<double>(exchange.bytes) / link.bytes_per_second
            : 0.0;
    return exchange.rounds * messages * static_cast<double>(link.latency_ns) + passing_ns;
  };
  layer.forward_ns += time_ns(layer.forward_exchange);
  layer.backward_weight_ns += time_ns(layer.weight_exchange);
  if (layer.backward_input_ns == 0) return;  // nobody wants the gradient of the data
  layer.backward_input_ns +=
      time_ns(layer.backward_exchange) + time_ns(layer.input_gradient_exchange);
}

Profile WithExchangeTimes(Profile profile, int devices, const schedule::Link& link) {
  for (SizedLayers& size : profile.sizes) {
    for (LayerCost& layer : size.layers) AddExchangeTimes(devices, link, layer);
  }
  return profile;
}

}  // namespace stagecoach::partition
