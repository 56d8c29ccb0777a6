#include "partition/cost/cluster.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

TEST(PartitionCluster, UniformDevicesShareAHostWhoseLinksTakeNoTime) {
  const Cluster cluster = UniformCluster(3, 1000);
  EXPECT_OK(CheckCluster(cluster));
  ASSERT_EQ(cluster.size(), 3);
  EXPECT_EQ(cluster.devices[2], (ClusterDevice{.name = "2", .memory_bytes = 1000}));
  EXPECT_EQ(cluster.LinkBetween(0, 2), schedule::Link{});
  EXPECT_TRUE(cluster.limits_memory());
  EXPECT_FALSE(UniformCluster(3).limits_memory());
}

TEST(PartitionCluster, LinksGoByHostUnlessThereIsAnException) {
  Cluster cluster = UniformCluster(4);
  cluster.devices[2].host = 1;
  cluster.devices[3].host = 1;
  cluster.within_host = {.latency_ns = 1};
  cluster.between_hosts = {.latency_ns = 2};
  cluster.exceptions = {{.from = 2, .to = 0, .link = {.latency_ns = 3}}};
  EXPECT_OK(CheckCluster(cluster));
  EXPECT_EQ(cluster.LinkBetween(0, 1).latency_ns, 1);
  EXPECT_EQ(cluster.LinkBetween(3, 2).latency_ns, 1);
  EXPECT_EQ(cluster.LinkBetween(1, 2).latency_ns, 2);
  EXPECT_EQ(cluster.LinkBetween(0, 2).latency_ns, 3);
  EXPECT_EQ(cluster.LinkBetween(2, 0).latency_ns, 3);
}

template <typename Change>
void ExpectClusterRefused(const std::string& message, Change change) {
  Cluster cluster = UniformCluster(3);
  change(cluster);
  EXPECT_THAT(CheckCluster(cluster), testing::IsRefused(message));
}

TEST(PartitionCluster, RefusesDevices) {
  ExpectClusterRefused("0 devices, expected 1 to 4096", [](Cluster& c) { c.devices.clear(); });
  ExpectClusterRefused("4097 devices", [](Cluster& c) { c = UniformCluster(4097); });
  ExpectClusterRefused("device 1 (): the name is empty",
                       [](Cluster& c) { c.devices[1].name = ""; });
  ExpectClusterRefused("device 2 (0): an earlier one", [](Cluster& c) { c.devices[2].name = "0"; });
  for (const double speed : {0.0, -1.0, 1e7, 1e-7, std::numeric_limits<double>::quiet_NaN()}) {
    ExpectClusterRefused("device 1 (1): speed is ",
                         [&](Cluster& c) { c.devices[1].speed = speed; });
  }
  ExpectClusterRefused("memory_bytes is -1", [](Cluster& c) { c.devices[0].memory_bytes = -1; });
  ExpectClusterRefused("host is -1", [](Cluster& c) { c.devices[0].host = -1; });
}

TEST(PartitionCluster, RefusesLinks) {
  ExpectClusterRefused("within a host: latency_ns is -1",
                       [](Cluster& c) { c.within_host.latency_ns = -1; });
  ExpectClusterRefused("between hosts: bytes_per_second is -1",
                       [](Cluster& c) { c.between_hosts.bytes_per_second = -1; });
  ExpectClusterRefused("link 1 - 1: expected two different devices of 0 to 2",
                       [](Cluster& c) { c.exceptions = {{.from = 1, .to = 1}}; });
  ExpectClusterRefused("link 0 - 3: expected",
                       [](Cluster& c) { c.exceptions = {{.from = 0, .to = 3}}; });
  ExpectClusterRefused("link 1 - 0: given twice", [](Cluster& c) {
    c.exceptions = {{.from = 0, .to = 1}, {.from = 1, .to = 0}};
  });
  ExpectClusterRefused("link 0 - 1: bytes_per_second is inf", [](Cluster& c) {
    c.exceptions = {{.from = 0,
                     .to = 1,
                     .link = {.bytes_per_second = std::numeric_limits<double>::infinity()}}};
  });
}

}  // namespace
}  // namespace stagecoach::partition
