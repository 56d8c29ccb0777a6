#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/io/transformer_file.h"
#include "partition/io/transformer_profile.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::testing::ElementsAre;

TransformerDescription Small() {
  return {.transformer = {.layers = 2, .hidden = 64, .heads = 4, .sequence = 16, .vocabulary = 10},
          .attentions = {Attention::kStored}};
}

// Returns hosts of four devices.
Cluster Hosts(int hosts) {
  Cluster cluster = UniformCluster(4 * hosts, 1 << 20);
  for (int i = 0; i < cluster.size(); ++i) cluster.devices[i].host = i / 4;
  cluster.within_host = {.latency_ns = 10, .bytes_per_second = 8e9};
  cluster.between_hosts = {.latency_ns = 20, .bytes_per_second = 1e9};
  return cluster;
}

std::vector<std::string> NamesOf(const std::vector<ModelOption>& options) {
  std::vector<std::string> names;
  for (const ModelOption& option : options) names.push_back(option.name);
  return names;
}

TEST(TransformerOptions, OneThatLeavesNothingOpenIsAsItWas) {
  TransformerDescription description = Small();
  description.transformer.tensor_parallel = 8;
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelOption> options,
                       TransformerOptions(description, "gpt", Hosts(1)));
  ASSERT_EQ(options.size(), 1u);
  EXPECT_EQ(options[0].name, "");
  EXPECT_EQ(options[0].profile, TransformerProfile(description.transformer, "gpt"));
  EXPECT_EQ(options[0].cluster, Hosts(1));
}

TEST(TransformerOptions, AreAllCombinations) {
  TransformerDescription description = Small();
  description.attentions = {Attention::kRecomputed, Attention::kFlash};
  description.tensor_parallel = {1, 2};
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelOption> options,
                       TransformerOptions(description, "gpt", Hosts(2)));
  EXPECT_THAT(NamesOf(options), ElementsAre("recomputed attention, tensor parallelism 1",
                                            "flash attention, tensor parallelism 1",
                                            "recomputed attention, tensor parallelism 2",
                                            "flash attention, tensor parallelism 2"));
  EXPECT_EQ(options[1].cluster, Hosts(2));
  EXPECT_EQ(options[3].cluster.size(), 4);
  Transformer shared = description.transformer;
  shared.attention = Attention::kFlash;
  shared.tensor_parallel = 2;
  shared.tensor_link = {.latency_ns = 10, .bytes_per_second = 8e9};
  EXPECT_EQ(options[3].profile, TransformerProfile(shared, "gpt"));
}

// Groups that share experts are groups of groups that share layers.
TEST(TransformerOptions, ExpertsAreSharedByNeighborsOfOneHost) {
  TransformerDescription description = Small();
  description.transformer.experts = 4;
  description.transformer.expert_parallel = 2;
  description.tensor_parallel = {2};
  Cluster cluster = Hosts(2);
  cluster.exceptions = {{.from = 1, .to = 2, .link = {.latency_ns = 50, .bytes_per_second = 4e9}}};
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelOption> options,
                       TransformerOptions(description, "moe", cluster));
  EXPECT_EQ(options[0].cluster.size(), 2);
  EXPECT_EQ(options[0].cluster.between_hosts.bytes_per_second, 2e9) << "two links for each group";
  Transformer shared = description.transformer;
  shared.tensor_parallel = 2;
  shared.tensor_link = {.latency_ns = 10, .bytes_per_second = 8e9};
  shared.expert_link = {.latency_ns = 50, .bytes_per_second = 4e9};
  EXPECT_EQ(options[0].profile, TransformerProfile(shared, "moe"));
  description.tensor_parallel = {4};
  EXPECT_THAT(TransformerOptions(description, "moe", cluster),
              testing::IsRefused("tensor_parallel times expert_parallel: groups of 8"));
}

TEST(TransformerOptions, NoGroupMayShareTheExperts) {
  TransformerDescription description = Small();
  description.transformer.experts = 16;
  description.transformer.expert_parallel = 16;
  description.tensor_parallel = {1, 2};
  description.any_tensor_parallel = true;
  EXPECT_THAT(TransformerOptions(description, "moe", Hosts(1)),
              testing::IsRefused("groups of 16 devices: there are 4"));
}

TEST(TransformerOptions, KindsOfRecomputationAreOptions) {
  TransformerDescription description = Small();
  description.recomputes = {Recompute::kFull, Recompute::kSelective};
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelOption> options,
                       TransformerOptions(description, "gpt", Hosts(1)));
  EXPECT_THAT(NamesOf(options), ElementsAre("full recomputation", "selective recomputation"));
  const LayerCost& layer = options[1].profile.sizes[0].layers[1];
  EXPECT_GT(*layer.recompute_stash_bytes, 0);
  EXPECT_LT(layer.again_ns(), layer.forward_ns);
}

// Each of two devices sends half of an activation that both have, but its own half completely.
TEST(TransformerOptions, MessagesAreDividedWhereEachDeviceHasAll) {
  TransformerDescription description = Small();
  description.tensor_parallel = {2};
  ASSERT_OK_AND_ASSIGN(std::vector<ModelOption> options,
                       TransformerOptions(description, "gpt", Hosts(2)));
  EXPECT_EQ(options[0].cluster.between_hosts.bytes_per_second, 2e9);
  description.transformer.sequence_parallel = true;
  ASSERT_OK_AND_ASSIGN(options, TransformerOptions(description, "gpt", Hosts(2)));
  EXPECT_EQ(options[0].cluster.between_hosts.bytes_per_second, 1e9);
}

TEST(TransformerOptions, AutoTakesWhatHostsAndHeadsAllow) {
  TransformerDescription description = Small();
  description.tensor_parallel = {1, 2, 4, 8, 16};
  EXPECT_THAT(TransformerOptions(description, "gpt", Hosts(2)),
              testing::IsRefused("tensor_parallel: groups of 8 devices: 0 to 7 are not"));
  description.any_tensor_parallel = true;
  ASSERT_OK_AND_ASSIGN(std::vector<ModelOption> options,
                       TransformerOptions(description, "gpt", Hosts(2)));
  EXPECT_EQ(NamesOf(options).back(), "tensor parallelism 4");
  description.transformer.heads = 2;
  ASSERT_OK_AND_ASSIGN(options, TransformerOptions(description, "gpt", Hosts(2)));
  EXPECT_EQ(NamesOf(options).back(), "tensor parallelism 2");
}

}  // namespace
}  // namespace stagecoach::partition
