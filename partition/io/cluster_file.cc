#include "partition/io/cluster_file.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/toml.h"
#include "base/text/units.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;
using base::ObjectReader;

constexpr int64_t kClusterVersion = 1;
constexpr int64_t kMaxClusterBytes = int64_t{4} << 20;

absl::Status CheckVersion(ObjectReader& reader) {
  ASSIGN_OR_RETURN(const int64_t version, reader.RequiredInt64("version"));
  if (version == kClusterVersion) return absl::OkStatus();
  return reader.Error("version", absl::StrCat("version ", version, ": this program reads version ",
                                              kClusterVersion));
}

absl::StatusOr<int64_t> ReadMemory(ObjectReader& reader) {
  if (!reader.Has("memory")) return 0;
  ASSIGN_OR_RETURN(const std::string text, reader.RequiredString("memory"));
  const absl::StatusOr<int64_t> bytes = base::ParseBytes(text);
  if (!bytes.ok()) return reader.Error("memory", bytes.status().message());
  if (*bytes >= 1 && *bytes <= kMaxDeviceBytes) return *bytes;
  return reader.Error("memory",
                      absl::StrCat("must be from 1 to ", kMaxDeviceBytes, " bytes, found ", *bytes,
                                   "; leave it out for no limit"));
}

struct Shape {
  int64_t hosts = 1;
  int64_t devices_per_host = 1;
};

absl::StatusOr<Shape> ReadShape(ObjectReader& reader) {
  constexpr base::Int64Range kCount = {.min = 1, .max = kMaxDevices};
  Shape shape;
  if (!reader.Has("hosts") && !reader.Has("devices_per_host")) {
    ASSIGN_OR_RETURN(shape.devices_per_host, reader.RequiredInt64("devices", kCount));
    return shape;
  }
  if (reader.Has("devices")) {
    return reader.Error("devices", "is for one host: give it, or both hosts and devices_per_host");
  }
  ASSIGN_OR_RETURN(shape.hosts, reader.RequiredInt64("hosts", kCount));
  ASSIGN_OR_RETURN(shape.devices_per_host, reader.RequiredInt64("devices_per_host", kCount));
  return shape;
}

absl::Status ReadGroup(ObjectReader reader, size_t index, Cluster& cluster) {
  ASSIGN_OR_RETURN(const std::string name,
                   reader.OptionalString("name", absl::StrCat("group", index)));
  ASSIGN_OR_RETURN(const Shape shape, ReadShape(reader));
  const auto [hosts, per_host] = shape;
  ASSIGN_OR_RETURN(const bool same_host, reader.OptionalBool("same_host", false));
  ClusterDevice device;
  if (reader.Has("threads")) {
    ASSIGN_OR_RETURN(const int64_t threads,
                     reader.RequiredInt64("threads", {.min = 1, .max = kMaxDeviceThreads}));
    device.threads = static_cast<int>(threads);
  }
  ASSIGN_OR_RETURN(device.speed,
                   reader.OptionalDouble("speed", std::max(device.threads, 1),
                                         {.min = 1 / kMaxSpeedRatio, .max = kMaxSpeedRatio}));
  ASSIGN_OR_RETURN(device.memory_bytes, ReadMemory(reader));
  RETURN_IF_ERROR(reader.Finish());
  if (same_host && (hosts > 1 || cluster.devices.empty())) {
    return reader.Error("same_host", "is for one host, and not for the first group");
  }
  if (cluster.size() + hosts * per_host > kMaxDevices) {
    return reader.Error(
        hosts > 1 ? "hosts" : "devices",
        absl::StrCat("with this group there are ", cluster.size() + hosts * per_host,
                     " devices, expected at most ", kMaxDevices));
  }
  const int last_host = cluster.devices.empty() ? -1 : cluster.devices.back().host;
  for (int64_t i = 0; i < hosts * per_host; ++i) {
    device.name = absl::StrCat(name, ".", i);
    device.host = same_host ? last_host : last_host + 1 + static_cast<int>(i / per_host);
    cluster.devices.push_back(device);
  }
  return absl::OkStatus();
}

absl::StatusOr<schedule::Link> ReadLink(ObjectReader& reader) {
  constexpr base::DoubleRange kMicroseconds = {.min = 0, .max = schedule::kMaxTimeNs / 1e3};
  constexpr base::DoubleRange kGigabytes = {.min = 1e-9, .max = 1e9};
  schedule::Link link;
  ASSIGN_OR_RETURN(const double latency_us, reader.OptionalDouble("latency_us", 0, kMicroseconds));
  link.latency_ns = std::llround(1e3 * latency_us);
  ASSIGN_OR_RETURN(const double gigabytes,
                   reader.OptionalDouble("gigabytes_per_second", 0, kGigabytes));
  link.bytes_per_second = 1e9 * gigabytes;
  return link;
}

absl::StatusOr<schedule::Link> ReadLinkOf(ObjectReader& links, absl::string_view key) {
  ASSIGN_OR_RETURN(std::optional<ObjectReader> reader, links.OptionalObject(key));
  if (!reader.has_value()) return schedule::Link{};
  ASSIGN_OR_RETURN(const schedule::Link link, ReadLink(*reader));
  RETURN_IF_ERROR(reader->Finish());
  return link;
}

absl::Status ReadLinks(ObjectReader reader, Cluster& cluster) {
  ASSIGN_OR_RETURN(cluster.within_host, ReadLinkOf(reader, "within_host"));
  ASSIGN_OR_RETURN(cluster.between_hosts, ReadLinkOf(reader, "between_hosts"));
  ASSIGN_OR_RETURN(cluster.host_link.link, ReadLinkOf(reader, "host_memory"));
  ASSIGN_OR_RETURN(cluster.overlaps_messages, reader.OptionalBool("overlaps_messages", true));
  ASSIGN_OR_RETURN(const bool overlaps_copies, reader.OptionalBool("overlaps_host_copies", true));
  cluster.host_link.occupies_rank = !overlaps_copies;
  return reader.Finish();
}

absl::Status ReadExceptions(const ArrayReader& array, Cluster& cluster) {
  const base::Int64Range devices = {.min = 0, .max = cluster.size() - 1};
  std::set<std::pair<int64_t, int64_t>> seen;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(ObjectReader reader, array.Object(i));
    ASSIGN_OR_RETURN(const int64_t from, reader.RequiredInt64("from", devices));
    ASSIGN_OR_RETURN(const int64_t to, reader.RequiredInt64("to", devices));
    ASSIGN_OR_RETURN(const schedule::Link link, ReadLink(reader));
    RETURN_IF_ERROR(reader.Finish());
    if (from == to) return reader.Error("to", "must be another device than \"from\"");
    if (!seen.insert(std::minmax(from, to)).second) {
      return array.Error(i, absl::StrCat("the link between ", from, " and ", to,
                                         " appears twice; it is the same in both directions"));
    }
    cluster.exceptions.push_back(
        {.from = static_cast<int>(from), .to = static_cast<int>(to), .link = link});
  }
  return absl::OkStatus();
}

absl::StatusOr<Cluster> ReadCluster(const nlohmann::json& document) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  RETURN_IF_ERROR(CheckVersion(reader));
  ASSIGN_OR_RETURN(const ArrayReader groups, reader.RequiredArray("group"));
  ASSIGN_OR_RETURN(std::optional<ObjectReader> links, reader.OptionalObject("links"));
  ASSIGN_OR_RETURN(const std::optional<ArrayReader> exceptions, reader.OptionalArray("link"));
  RETURN_IF_ERROR(reader.Finish());
  if (groups.size() == 0) return reader.Error("group", "must have at least one");
  Cluster cluster;
  std::set<std::string> names;
  for (size_t i = 0; i < groups.size(); ++i) {
    ASSIGN_OR_RETURN(ObjectReader group, groups.Object(i));
    const std::string path = group.path();
    const size_t first = cluster.devices.size();
    RETURN_IF_ERROR(ReadGroup(std::move(group), i, cluster));
    // The name of a group is that of its first device without the number.
    const std::string& name = cluster.devices[first].name;
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": an earlier group also has a device \"", absl::CHexEscape(name), "\""));
    }
  }
  if (links.has_value()) RETURN_IF_ERROR(ReadLinks(*std::move(links), cluster));
  if (exceptions.has_value()) RETURN_IF_ERROR(ReadExceptions(*exceptions, cluster));
  RETURN_IF_ERROR(CheckCluster(cluster));
  return cluster;
}

}  // namespace

absl::StatusOr<Cluster> ParseClusterToml(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json document,
                   base::ParseToml(text, {.max_bytes = kMaxClusterBytes}));
  absl::StatusOr<Cluster> cluster = ReadCluster(document);
  if (!cluster.ok()) return base::WithTomlPlace(cluster.status(), text);
  return cluster;
}

absl::StatusOr<Cluster> ReadClusterFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxClusterBytes));
  absl::StatusOr<Cluster> cluster = ParseClusterToml(text);
  if (!cluster.ok()) return base::InFile(cluster.status(), path);
  return cluster;
}

}  // namespace stagecoach::partition
