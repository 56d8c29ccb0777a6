#include "partition/cost/cluster.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::partition {
namespace {

absl::Status CheckDevice(const ClusterDevice& device) {
  if (device.name.empty()) return absl::InvalidArgumentError("the name is empty");
  if (!(device.speed >= 1 / kMaxSpeedRatio && device.speed <= kMaxSpeedRatio)) {
    return absl::InvalidArgumentError(absl::StrCat("speed is ", device.speed, ", expected ",
                                                   1 / kMaxSpeedRatio, " to ", kMaxSpeedRatio));
  }
  if (device.memory_bytes < 0 || device.memory_bytes > kMaxDeviceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_bytes is ", device.memory_bytes, ", expected 0 to ", kMaxDeviceBytes));
  }
  if (device.host < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("host is ", device.host, ", expected 0 or more"));
  }
  if (device.threads < 0 || device.threads > kMaxDeviceThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", device.threads, ", expected 0 to ", kMaxDeviceThreads));
  }
  return absl::OkStatus();
}

absl::Status CheckLink(const schedule::Link& link) {
  if (link.latency_ns < 0 || link.latency_ns > schedule::kMaxTimeNs) {
    return absl::InvalidArgumentError(
        absl::StrCat("latency_ns is ", link.latency_ns, ", expected 0 to ", schedule::kMaxTimeNs));
  }
  if (!std::isfinite(link.bytes_per_second) || link.bytes_per_second < 0) {
    return absl::InvalidArgumentError(absl::StrCat("bytes_per_second is ", link.bytes_per_second,
                                                   ", expected a finite number, 0 or more"));
  }
  return absl::OkStatus();
}

absl::Status CheckExceptions(const Cluster& cluster) {
  absl::flat_hash_set<std::pair<int, int>> seen;
  for (const ClusterLink& exception : cluster.exceptions) {
    const auto [low, high] = std::minmax(exception.from, exception.to);
    const std::string place = absl::StrCat("link ", exception.from, " - ", exception.to);
    if (low < 0 || high >= cluster.size() || low == high) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": expected two different devices of 0 to ", cluster.size() - 1));
    }
    if (!seen.emplace(low, high).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": given twice; a link is the same in both directions"));
    }
    RETURN_IF_ERROR(base::Annotate(CheckLink(exception.link), place));
  }
  return absl::OkStatus();
}

}  // namespace

schedule::Link Cluster::LinkBetween(int from, int to) const {
  for (const ClusterLink& exception : exceptions) {
    if ((exception.from == from && exception.to == to) ||
        (exception.from == to && exception.to == from)) {
      return exception.link;
    }
  }
  const bool is_within =
      devices[static_cast<size_t>(from)].host == devices[static_cast<size_t>(to)].host;
  return is_within ? within_host : between_hosts;
}

bool Cluster::limits_memory() const {
  return std::any_of(devices.begin(), devices.end(),
                     [](const ClusterDevice& device) { return device.memory_bytes > 0; });
}

Cluster Cluster::Keep(absl::Span<const int> kept) const {
  Cluster smaller = *this;
  smaller.devices.clear();
  smaller.exceptions.clear();
  std::vector<int> place(devices.size(), -1);
  for (const int device : kept) {
    place[static_cast<size_t>(device)] = smaller.size();
    smaller.devices.push_back(devices[static_cast<size_t>(device)]);
  }
  for (ClusterLink exception : exceptions) {
    exception.from = place[static_cast<size_t>(exception.from)];
    exception.to = place[static_cast<size_t>(exception.to)];
    if (exception.from >= 0 && exception.to >= 0) smaller.exceptions.push_back(exception);
  }
  return smaller;
}

Cluster UniformCluster(int devices, int64_t memory_bytes) {
  Cluster cluster;
  for (int i = 0; i < devices; ++i) {
    cluster.devices.push_back({.name = absl::StrCat(i), .memory_bytes = memory_bytes});
  }
  return cluster;
}

absl::Status CheckCluster(const Cluster& cluster) {
  if (cluster.devices.empty() || cluster.devices.size() > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat(cluster.devices.size(), " devices, expected 1 to ", kMaxDevices));
  }
  absl::flat_hash_set<absl::string_view> names;
  for (int i = 0; i < cluster.size(); ++i) {
    const ClusterDevice& device = cluster.devices[static_cast<size_t>(i)];
    const std::string place = absl::StrCat("device ", i, " (", device.name, ")");
    RETURN_IF_ERROR(base::Annotate(CheckDevice(device), place));
    if (!names.insert(device.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": an earlier one also has that name"));
    }
  }
  RETURN_IF_ERROR(base::Annotate(CheckLink(cluster.within_host), "the link within a host"));
  RETURN_IF_ERROR(base::Annotate(CheckLink(cluster.between_hosts), "the link between hosts"));
  RETURN_IF_ERROR(base::Annotate(CheckLink(cluster.host_link.link), "the link to a host's memory"));
  return CheckExceptions(cluster);
}

}  // namespace stagecoach::partition
