#include "partition/cost/device_groups.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

TEST(DeviceGroups, AreAsFastAndAsLargeAsTheirLeastDevice) {
  Cluster cluster = UniformCluster(4);
  cluster.devices[0].speed = 2;
  cluster.devices[2].memory_bytes = 100;
  cluster.within_host = {.latency_ns = 5, .bytes_per_second = 10};
  cluster.exceptions = {{.from = 3, .to = 2, .link = {.latency_ns = 9, .bytes_per_second = 7}},
                        {.from = 3, .to = 1, .link = {.latency_ns = 1, .bytes_per_second = 2}}};
  ASSERT_OK_AND_ASSIGN(const GroupedCluster grouped, GroupDevices(cluster, 2, /*message_parts=*/2));
  EXPECT_EQ(grouped.within, (schedule::Link{.latency_ns = 9, .bytes_per_second = 7}));
  EXPECT_OK(CheckCluster(grouped.cluster));
  ASSERT_EQ(grouped.cluster.size(), 2);
  EXPECT_EQ(grouped.cluster.devices[0],
            (ClusterDevice{.name = "0+1", .speed = 1, .memory_bytes = 0, .members = {"0", "1"}}));
  EXPECT_EQ(grouped.cluster.devices[1].memory_bytes, 100);
  // Devices 0 and 2 have the usual link, 1 and 3 the slow one; both carry half of a message.
  EXPECT_EQ(grouped.cluster.LinkBetween(0, 1),
            (schedule::Link{.latency_ns = 5, .bytes_per_second = 4}));
}

TEST(DeviceGroups, OfOneDeviceAreTheDevices) {
  const Cluster cluster = UniformCluster(3);
  ASSERT_OK_AND_ASSIGN(const GroupedCluster grouped, GroupDevices(cluster, 1, /*message_parts=*/1));
  EXPECT_EQ(grouped.cluster, cluster);
}

TEST(DeviceGroups, AreOnOneHostAndTakeAllDevices) {
  Cluster cluster = UniformCluster(6);
  EXPECT_THAT(GroupDevices(cluster, 4, 1), testing::IsRefused("groups of 4 devices: there are 6"));
  for (int i = 3; i < 6; ++i) cluster.devices[i].host = 1;
  EXPECT_OK(GroupDevices(cluster, 3, 1));
  EXPECT_THAT(GroupDevices(cluster, 2, 1), testing::IsRefused("2 to 3 are not on one host"));
}

TEST(DeviceGroups, ExchangeMessagesOneAfterTheOther) {
  const LayerCost layer = {.forward_ns = 100,
                           .backward_input_ns = 200,
                           .backward_weight_ns = 300,
                           .forward_exchange = {.bytes = 1000, .rounds = 2},
                           .backward_exchange = {.bytes = 400, .rounds = 1},
                           .input_gradient_exchange = {.bytes = 3000, .rounds = 2},
                           .weight_exchange = {.bytes = 200, .rounds = 2}};
  Profile profile;
  profile.sizes = {{.layers = {layer, layer}}};
  profile.sizes.front().layers.front().backward_input_ns = 0;  // its input is the data
  const Profile of_four =
      WithExchangeTimes(profile, 4, {.latency_ns = 10, .bytes_per_second = 2e9});
  const std::vector<LayerCost>& layers = of_four.sizes.front().layers;
  EXPECT_EQ(layers[0].forward_ns, 100 + 2 * 2 * 10 + 500);
  EXPECT_EQ(layers[0].backward_input_ns, 0);
  EXPECT_EQ(layers[1].forward_ns, 100 + 2 * 2 * 10 + 500);
  EXPECT_EQ(layers[1].backward_input_ns, 200 + (1 + 2) * 2 * 10 + 200 + 1500);
  for (const LayerCost& one : layers) EXPECT_EQ(one.backward_weight_ns, 300 + 2 * 2 * 10 + 100);
  const auto forward_of = [&](int devices) {
    return WithExchangeTimes(profile, devices, {.latency_ns = 10})
        .sizes.front()
        .layers[1]
        .forward_ns;
  };
  EXPECT_EQ(forward_of(2), 100 + 2 * 10);
  EXPECT_EQ(forward_of(1), 100);
}

}  // namespace
}  // namespace stagecoach::partition
