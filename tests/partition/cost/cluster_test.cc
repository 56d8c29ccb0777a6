#include "partition/cost/cluster.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::Refusal;

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

TEST(PartitionCluster, KeepsDevicesAndTheLinksBetweenThem) {
  Cluster cluster = UniformCluster(4);
  cluster.devices[2].speed = 2;
  cluster.exceptions = {{.from = 0, .to = 2, .link = {.latency_ns = 3}},
                        {.from = 2, .to = 3, .link = {.latency_ns = 4}}};
  const Cluster kept = cluster.Keep({0, 2});
  EXPECT_OK(CheckCluster(kept));
  ASSERT_EQ(kept.size(), 2);
  EXPECT_EQ(kept.devices[1], cluster.devices[2]);
  ASSERT_EQ(kept.exceptions.size(), 1u);
  EXPECT_EQ(kept.LinkBetween(0, 1).latency_ns, 3);
}

TEST(PartitionCluster, RefusesDevicesAndLinksOutOfRange) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Refusal<Change<Cluster>> refusals[] = {
      {[](Cluster& c) { c.devices.clear(); }, "0 devices, expected 1 to 4096"},
      {[](Cluster& c) { c = UniformCluster(4097); }, "4097 devices"},
      {[](Cluster& c) { c.devices[1].name = ""; }, "device 1 (): the name is empty"},
      {[](Cluster& c) { c.devices[2].name = "0"; }, "device 2 (0): an earlier one"},
      {[](Cluster& c) { c.devices[1].speed = 0; }, "device 1 (1): speed is "},
      {[](Cluster& c) { c.devices[1].speed = -1; }, "device 1 (1): speed is "},
      {[](Cluster& c) { c.devices[1].speed = 1e7; }, "device 1 (1): speed is "},
      {[](Cluster& c) { c.devices[1].speed = 1e-7; }, "device 1 (1): speed is "},
      {[](Cluster& c) { c.devices[1].speed = std::nan(""); }, "device 1 (1): speed is "},
      {[](Cluster& c) { c.devices[0].memory_bytes = -1; }, "memory_bytes is -1"},
      {[](Cluster& c) { c.devices[0].host = -1; }, "host is -1"},
      {[](Cluster& c) { c.devices[0].threads = 257; }, "threads is 257, expected 0 to 256"},
      {[](Cluster& c) { c.within_host.latency_ns = -1; }, "within a host: latency_ns is -1"},
      {[](Cluster& c) { c.between_hosts.bytes_per_second = -1; },
       "between hosts: bytes_per_second is -1"},
      {[](Cluster& c) {
         c.exceptions = {{1, 1}};
       },
       "link 1 - 1: expected two different devices of 0 to 2"},
      {[](Cluster& c) {
         c.exceptions = {{0, 3}};
       },
       "link 0 - 3: expected"},
      {[](Cluster& c) {
         c.exceptions = {{0, 1}, {1, 0}};
       },
       "link 1 - 0: given twice"},
      {[](Cluster& c) {
         c.exceptions = {{0, 1, {.bytes_per_second = kInfinity}}};
       },
       "link 0 - 1: bytes_per_second is inf"},
  };
  ExpectRefusedChanges(UniformCluster(3), CheckCluster, refusals);
}

}  // namespace
}  // namespace stagecoach::partition
