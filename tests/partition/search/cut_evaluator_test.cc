#include "partition/evaluate/cut_evaluator.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "partition/search/balance_stages.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::Link;

constexpr int64_t kParameterBytes = 1'000'000;

Profile FourLayers() {
  SizedLayers sized = {.micro_batch_rows = 1};
  for (const char* name : {"a", "b", "c", "d"}) {
    LayerCost layer = {
        .name = name, .forward_ns = 1000, .backward_input_ns = 1000, .backward_weight_ns = 1000};
    layer.memory = {.parameter_bytes = kParameterBytes, .input_bytes = 5000, .output_bytes = 5000};
    sized.layers.push_back(layer);
  }
  return {.model = "four", .sizes = {sized}};
}

// Two ranks of two devices each: 0 and 1, 2 and 3.
CutEvaluator TwoRanks(const Cluster& cluster, int gradient_blocks = 2) {
  const Plan plan = {.num_layers = 4,
                     .micro_batch_rows = 1,
                     .schedule = GeneratedSchedule("1f1b", 6)(2).value(),
                     .replication = {2, gradient_blocks}};
  return CutEvaluator::Create(plan, TableOf(FourLayers(), 1, 6, plan.replication, {}), cluster)
      .value();
}

Cluster WithLinks(std::vector<ClusterLink> exceptions) {
  Cluster cluster = UniformCluster(4);
  cluster.within_host = {.latency_ns = 10, .bytes_per_second = 1e9};
  cluster.exceptions = std::move(exceptions);
  return cluster;
}

// A message passes when that of the slowest replica has: it has the worst latency and bandwidth.
TEST(CutEvaluator, ALinkOfRanksIsTheSlowestOfThoseOfTheirReplicas) {
  EXPECT_EQ(TwoRanks(WithLinks({})).LinkBetween(0, 1), (Link{10, 1e9}));
  for (const int replica : {0, 1}) {
    const auto with = [&](const Link& link) {
      return TwoRanks(WithLinks({{.from = replica, .to = replica + 2, .link = link}}))
          .LinkBetween(0, 1);
    };
    EXPECT_EQ(with({70, 1e9}), (Link{70, 1e9}));
    EXPECT_EQ(with({3, 1e9}), (Link{10, 1e9}));
    EXPECT_EQ(with({10, 2e8}), (Link{10, 2e8}));
    EXPECT_EQ(with({10, 3e9}), (Link{10, 1e9}));
    EXPECT_EQ(with({70, 3e9}), (Link{70, 1e9}));  // each in one of the two
    EXPECT_EQ(with({10, 0}), (Link{10, 1e9}));    // infinitely fast
  }
  // Replicas exchange nothing across ranks.
  EXPECT_EQ(TwoRanks(WithLinks({{.from = 0, .to = 3, .link = {70, 1e8}}})).LinkBetween(0, 1),
            (Link{10, 1e9}));
}

// 2 (R - 1) messages of a part divided by R, over the slowest link of the rank's devices.
TEST(CutEvaluator, ASumOverReplicasTakesTheSlowestLinkOfTheirRank) {
  const CutEvaluator::Cut cut = {{0, 3}, {}};
  const auto reduce_ns = [&](const Cluster& cluster, int stage) {
    return TwoRanks(cluster).CostsOf(cut).stages[static_cast<size_t>(stage)].reduce_ns;
  };
  const auto message_ns = [](const Link& link, int layers) {
    return link.TransferNs(layers * kParameterBytes / 2);
  };
  const Link usual = {10, 1e9};
  EXPECT_EQ(reduce_ns(WithLinks({}), 0), 2 * message_ns(usual, 3));
  EXPECT_EQ(reduce_ns(WithLinks({}), 1), 2 * message_ns(usual, 1));
  // Three blocks each make two sums.
  EXPECT_EQ(TwoRanks(WithLinks({}), 6).CostsOf(cut).stages[0].reduce_ns, 3 * message_ns(usual, 3));
  EXPECT_EQ(TwoRanks(WithLinks({}), 6).ReductionNsOf(1000), 3 * 500);
  for (const Link& link : {Link{9999, 1e9}, Link{10, 1e8}}) {
    const Cluster slow_first = WithLinks({{.from = 0, .to = 1, .link = link}});
    EXPECT_EQ(reduce_ns(slow_first, 0), 2 * message_ns(link, 3));
    EXPECT_EQ(reduce_ns(slow_first, 1), 2 * message_ns(usual, 1));
    const Cluster slow_second = WithLinks({{.from = 3, .to = 2, .link = link}});
    EXPECT_EQ(reduce_ns(slow_second, 0), 2 * message_ns(usual, 3));
    EXPECT_EQ(reduce_ns(slow_second, 1), 2 * message_ns(link, 1));
    // Links between different ranks do not matter.
    EXPECT_EQ(reduce_ns(WithLinks({{.from = 1, .to = 2, .link = link}}), 0),
              2 * message_ns(usual, 3));
  }
}

TEST(CutEvaluator, AnUpdateWaitsForWhatItReadsInTheHostsMemory) {
  Profile profile = FourLayers();
  for (LayerCost& layer : profile.sizes.front().layers) {
    layer.step_ns = 100;
    layer.memory.optimizer_bytes = 2 * kParameterBytes;
    layer.memory.working_bytes = layer.memory.other_resident_bytes = kParameterBytes / 2;
  }
  Cluster cluster = UniformCluster(4);
  cluster.host_link.link = {.latency_ns = 7, .bytes_per_second = 1e9};
  const auto times = [&](const Replication& replication) {
    const Plan plan = {.num_layers = 4,
                       .micro_batch_rows = 1,
                       .schedule = GeneratedSchedule("1f1b", 6)(2).value(),
                       .replication = replication};
    const auto table = TableOf(profile, 1, 6, replication, {});
    return CutEvaluator::Create(plan, table, cluster)->CostsOf({{0, 3}, {}}).stages[0];
  };
  Replication replication = {.replicas = 2, .gradient_blocks = 2};
  EXPECT_EQ(times(replication).step_ns, 300);
  replication.offloads_optimizer = true;
  EXPECT_EQ(times(replication).step_ns, 300 + 7 + 3 * 3 * kParameterBytes);
  // A shard is updated while gradients are summed, and its values are on the device.
  replication.shards_optimizer = true;
  EXPECT_EQ(times(replication).step_ns, 0);
  EXPECT_EQ(times(replication).reduce_ns, 150 + 7 + 3 * kParameterBytes);
  profile.collectives.norm_bytes = 8;
  EXPECT_EQ(times(replication).step_ns, 150 + 7 + 3 * kParameterBytes);
  EXPECT_EQ(times(replication).reduce_ns, 0);
  cluster.host_link.occupies_rank = true;
  EXPECT_EQ(times(replication).step_ns, 150);
}

TEST(CutEvaluator, ARankIsAsFastAndAsLargeAsItsLeastDevice) {
  Cluster cluster = UniformCluster(4);
  cluster.devices[1].speed = 0.5;
  cluster.devices[2].speed = 4.0;
  cluster.devices[1].memory_bytes = 700;
  cluster.devices[2].memory_bytes = 500;
  cluster.devices[3].memory_bytes = 900;
  const CutEvaluator pipeline = TwoRanks(cluster);
  EXPECT_EQ(pipeline.devices_of(0).speed, 0.5);
  EXPECT_EQ(pipeline.devices_of(1).speed, 1.0);
  EXPECT_EQ(pipeline.devices_of(0).memory_bytes, 700);
  EXPECT_EQ(pipeline.devices_of(1).memory_bytes, 500);
  const CutEvaluator::Cut cut = {{0, 1}, {}};
  EXPECT_EQ(pipeline.CostsOf(cut).stages[0].forward_ns, 2000);
  EXPECT_EQ(pipeline.CostsOf(cut).stages[1].forward_ns, 3000);
}

}  // namespace
}  // namespace stagecoach::partition
