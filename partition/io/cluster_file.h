#ifndef STAGECOACH_PARTITION_IO_CLUSTER_FILE_H_
#define STAGECOACH_PARTITION_IO_CLUSTER_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/cost/cluster.h"

namespace stagecoach::partition {

// Parses clusters as TOML, in the order in which a pipeline passes the devices:
//
//   version = 1
//
//   [[group]]                  # equal devices; as many groups as needed
//   name = "a100"              # default: "group0", "group1", ...; its devices: "a100.0", ...
//   devices = 8                # on one host; or hosts = 2 and devices_per_host = 8
//   same_host = false          # true: on the host of the device before, not on one of its own
//   speed = 1.0                # relative to the profiled device; default: threads, or 1
//   memory = "80GB"            # of each device; default: no limit
//   threads = 1                # of each device, if it is CPU cores; the profiled device has one
//
//   [links]                    # all optional; without it links take no time
//   within_host = {latency_us = 5, gigabytes_per_second = 300}
//   between_hosts = {latency_us = 20, gigabytes_per_second = 25}
//   host_memory = {latency_us = 10, gigabytes_per_second = 25}  # of each device to its host's
//   overlaps_messages = true   # devices compute while messages are under way
//   overlaps_host_copies = true  # and while they copy to and from their host's memory
//
//   [[link]]                   # exceptions, the same in both directions
//   from = 0                   # devices by number, over all groups
//   to = 15
//   latency_us = 50            # default 0
//   gigabytes_per_second = 1   # default: infinite
//
// InvalidArgument starts with the line, then the path of the value: a wrong type, a number out of
// range, an unknown key or version, a link to itself or to a nonexistent device, a duplicate link
// or name, no device or more than kMaxDevices.
absl::StatusOr<Cluster> ParseClusterToml(absl::string_view text);

// Reads the same from a file, up to 4 MiB.
absl::StatusOr<Cluster> ReadClusterFile(const std::string& path);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_CLUSTER_FILE_H_
