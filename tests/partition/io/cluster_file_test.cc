#include "partition/io/cluster_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::testing::StartsWith;

TEST(ClusterFile, AGroupNeedsOnlyDevices) {
  ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                       ParseClusterToml("version = 1\n[[group]]\ndevices = 2\n"));
  Cluster expected = UniformCluster(2);
  expected.devices[0].name = "group0.0";
  expected.devices[1].name = "group0.1";
  EXPECT_EQ(cluster, expected);
}

TEST(ClusterFile, ReadsEverything) {
  ASSERT_OK_AND_ASSIGN(const Cluster cluster, ParseClusterToml(R"(version = 1
[[group]]
name = "a100"
hosts = 2
devices_per_host = 2
memory = "80GB"

[[group]]
name = "v100"
devices = 1
speed = 0.4

[[group]]
devices = 1
same_host = true
memory = "16 GiB"

[links]
within_host = {latency_us = 5, gigabytes_per_second = 300}
between_hosts = {latency_us = 0.02, gigabytes_per_second = 25}
host_memory = {latency_us = 10, gigabytes_per_second = 20}
overlaps_messages = false
overlaps_host_copies = false

[[link]]
from = 4
to = 0
latency_us = 50
gigabytes_per_second = 1.5
)"));
  const int64_t gigabytes = 80'000'000'000;
  const Cluster expected = {
      .devices = {{.name = "a100.0", .memory_bytes = gigabytes},
                  {.name = "a100.1", .memory_bytes = gigabytes},
                  {.name = "a100.2", .memory_bytes = gigabytes, .host = 1},
                  {.name = "a100.3", .memory_bytes = gigabytes, .host = 1},
                  {.name = "v100.0", .speed = 0.4, .host = 2},
                  {.name = "group2.0", .memory_bytes = int64_t{16} << 30, .host = 2}},
      .within_host = {.latency_ns = 5000, .bytes_per_second = 300e9},
      .between_hosts = {.latency_ns = 20, .bytes_per_second = 25e9},
      .exceptions = {{.from = 4,
                      .to = 0,
                      .link = {.latency_ns = 50000, .bytes_per_second = 1.5e9}}},
      .host_link = {.link = {.latency_ns = 10'000, .bytes_per_second = 20e9},
                    .occupies_rank = true},
      .overlaps_messages = false};
  EXPECT_EQ(cluster, expected);
}

TEST(ClusterFile, ADeviceIsAsFastAsItsThreadsUnlessItsSpeedIsGiven) {
  ASSERT_OK_AND_ASSIGN(const Cluster cluster, ParseClusterToml(R"(version = 1
[[group]]
devices = 1
threads = 4
[[group]]
devices = 1
threads = 4
speed = 2.5
[[group]]
devices = 1
)"));
  ASSERT_EQ(cluster.size(), 3);
  EXPECT_EQ(cluster.devices[0], (ClusterDevice{.name = "group0.0", .speed = 4, .threads = 4}));
  EXPECT_EQ(cluster.devices[1],
            (ClusterDevice{.name = "group1.0", .speed = 2.5, .host = 1, .threads = 4}));
  EXPECT_EQ(cluster.devices[2], (ClusterDevice{.name = "group2.0", .host = 2}));
}

constexpr absl::string_view kTwo = "version = 1\n[[group]]\ndevices = 2\n";

TEST(ClusterFile, RefusesOtherVersionsAndNoGroup) {
  ExpectRefusals({
      {ParseClusterToml("\nversion = 2"),
       StartsWith("2:1: $.version: version 2: this program reads version 1")},
      {ParseClusterToml("[[group]]\ndevices = 1"),
       StartsWith("1:1: $: the key \"version\" is missing")},
      {ParseClusterToml("version = 1"), StartsWith("1:1: $: the key \"group\" is missing")},
      {ParseClusterToml("version = 1\ngroup = []"),
       StartsWith("2:1: $.group: must have at least one")},
      {ParseClusterToml("version = 1\n[[group]]\ndevices = 1\nsame_host = true"),
       StartsWith("4:1: $.group[0].same_host: is for one host, and not for the first group")},
  });
}

TEST(ClusterFile, RefusesGroups) {
  const auto refused = [](const std::string& more, const std::string& message) {
    EXPECT_THAT(ParseClusterToml(absl::StrCat(kTwo, "[[group]]\n", more)),
                IsRefused(StartsWith(message)));
  };
  refused("", "4:1: $.group[1]: the key \"devices\" is missing");
  refused("devices = 0", "5:1: $.group[1].devices: must be from 1 to 4096, found 0");
  refused("devices = 4095", "5:1: $.group[1].devices: with this group there are 4097 devices");
  refused("hosts = 4096\ndevices_per_host = 4096", "5:1: $.group[1].hosts: with this group");
  refused("hosts = 2", "4:1: $.group[1]: the key \"devices_per_host\" is missing");
  refused("hosts = 2\ndevices_per_host = 2\ndevices = 4", "7:1: $.group[1].devices: is for one");
  refused("devices = 1\nthreads = 0", "6:1: $.group[1].threads: must be from 1 to 256, found 0");
  refused("devices = 1\nspeed = 0", "6:1: $.group[1].speed: must be from 1e-06 to 1000000.0");
  refused("devices = 1\nspede = 2", "6:1: $.group[1]: unknown key \"spede\"; did you mean \"speed");
  refused("devices = 1\nmemory = \"80XB\"", "6:1: $.group[1].memory: ");
  refused("devices = 1\nmemory = \"0\"", "6:1: $.group[1].memory: must be from 1 to ");
  refused("devices = 1\nmemory = 5", "6:1: $.group[1].memory: expected a string");
  refused("devices = 1\nname = \"group0\"",
          "4:1: $.group[1]: an earlier group also has a device \"group0.0\"");
  refused("hosts = 2\ndevices_per_host = 2\nsame_host = true", "7:1: $.group[1].same_host: is");
}

TEST(ClusterFile, RefusesLinks) {
  const auto refused = [](const std::string& more, const std::string& message) {
    EXPECT_THAT(ParseClusterToml(absl::StrCat(kTwo, more)), IsRefused(StartsWith(message)));
  };
  refused("[links]\nwithin_hosts = {}",
          "5:1: $.links: unknown key \"within_hosts\"; did you mean \"within_host\"?");
  refused("[links]\nwithin_host = {latency_us = -1}",
          "5:16: $.links.within_host.latency_us: must be from 0.0 to ");
  refused("[links]\nbetween_hosts = {gigabytes_per_second = 0}",
          "5:18: $.links.between_hosts.gigabytes_per_second: must be from 1e-09 to ");
  refused("[links]\nwithin_host = {latency = 1}", "5:16: $.links.within_host: unknown key");
  refused("[[link]]\nfrom = 0\nto = 2", "6:1: $.link[0].to: must be from 0 to 1, found 2");
  refused("[[link]]\nfrom = 1\nto = 1", "6:1: $.link[0].to: must be another device");
  refused("[[link]]\nfrom = 0\nto = 1\n[[link]]\nfrom = 1\nto = 0",
          "7:1: $.link[1]: the link between 1 and 0 appears twice");
  refused("[[link]]\nfrom = 0", "4:1: $.link[0]: the key \"to\" is missing");
}

TEST(ClusterFile, FilesAreReadWithinALimit) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "cluster.toml";
  std::ofstream(path) << kTwo;
  EXPECT_THAT(ReadClusterFile(path), testing::IsOk());
  std::filesystem::resize_file(path, int64_t{1} << 30);
  EXPECT_THAT(ReadClusterFile(path), testing::StatusIs(absl::StatusCode::kResourceExhausted, path));
  std::filesystem::remove(path);
  EXPECT_THAT(ReadClusterFile(path), testing::StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace stagecoach::partition
