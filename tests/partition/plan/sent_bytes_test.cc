#include "partition/plan/sent_bytes.h"

#include <vector>

#include "gtest/gtest.h"
#include "partition/search/balance_stages.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;

constexpr int kSentMicroBatches = 6;  // of each replica

// Returns the bytes sent under two stages, whose activations and
// gradients take 512 bytes; the parameters of the first take 5 MiB, so that they travel in two
// parts, and those of the second 1 KiB.
SentBytes SentBy(int rank, int replica, const Replication& replication,
                 const schedule::CollectiveMemory& collectives = {},
                 const std::vector<Tie>& ties = {}) {
  std::vector<LayerCost> layers(2);
  layers[0].memory = {.parameter_bytes = 5 << 20, .output_bytes = 512};
  layers[1].memory = {.parameter_bytes = 1024, .input_bytes = 512, .output_bytes = 64};
  const Plan plan = {.first_layer = {0, 1},
                     .num_layers = 2,
                     .schedule = GeneratedSchedule("1f1b", kSentMicroBatches)(2).value(),
                     .replication = replication};
  const CompiledPlan prepared =
      CompilePlan(plan, layers, {}, schedule::Transfers::kSeparate, collectives).value();
  return SentBytesOf(prepared, {}, ties, Rank(rank), replica);
}

TEST(SentBytes, OfOneReplicaAreActivationsAndGradients) {
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(SentBy(rank, 0, {}), (SentBytes{.to_ranks = kSentMicroBatches * 512})) << rank;
  }
}

// A ring sends the same.
TEST(SentBytes, OfReplicasAreTwiceTheShardsOfTheOthers) {
  for (const int replicas : {2, 3, 4}) {
    for (int replica = 0; replica < replicas; ++replica) {
      const Replication replication = {.replicas = replicas, .gradient_blocks = replicas};
      if (replicas == 3) {  // whose last shards are smaller
        EXPECT_EQ(SentBy(1, replica, replication).to_replicas, replica == 2 ? 1280 : 1408);
        continue;
      }
      EXPECT_EQ(SentBy(0, replica, replication).to_replicas,
                2 * (replicas - 1) * (5 << 20) / replicas);
      EXPECT_EQ(SentBy(1, replica, replication).to_replicas, 2 * (replicas - 1) * 1024 / replicas);
    }
  }
}

// Blocks 0 to 5 of two replicas are two subtrees each, and those of three are one.
TEST(SentBytes, OfReplicasWithSeveralSubtreesAreAShardOfEach) {
  for (const int replica : {0, 1}) {
    EXPECT_EQ(SentBy(1, replica, {2, 6}).to_replicas, 2 * 512 + 512);
    EXPECT_EQ(SentBy(1, replica, {2, 6, true}).to_replicas, 2 * 512 + 512);
  }
  EXPECT_EQ(SentBy(1, 0, {3, 6}).to_replicas, 2 * 384 + (1024 - 384));
  EXPECT_EQ(SentBy(1, 2, {3, 6}).to_replicas, 2 * 256 + (1024 - 256));
}

TEST(SentBytes, OfARingAreThoseOfOurOwn) {
  const Replication replication = {2, 2, false, ReductionKind::kRing};
  EXPECT_EQ(SentBy(0, 1, replication).to_replicas, 5 << 20);
}

TEST(SentBytes, OfAShardedOptimizerAreAsMany) {
  const Replication replication = {.replicas = 2, .gradient_blocks = 2, .shards_optimizer = true};
  EXPECT_EQ(SentBy(1, 0, replication).to_replicas, 1024);
}

// The gathered parameters add to the gathered gradients, whose ties and norm they wait for.
TEST(SentBytes, OfAShardedOptimizerWhoseUpdatesWaitAreHalfAsManyMore) {
  const Replication replication = {.replicas = 2, .gradient_blocks = 2, .shards_optimizer = true};
  EXPECT_EQ(SentBy(1, 0, replication, {.norm_bytes = 48, .replicas = 2}),
            (SentBytes{.to_ranks = kSentMicroBatches * 512 + 48, .to_replicas = 1024 + 512}));
  const std::vector<Tie> ties = {{.layer = 0, .other_layer = 1, .bytes = 1000}};
  EXPECT_EQ(SentBy(1, 0, replication, {.ties = 1, .replicas = 2}, ties),
            (SentBytes{.to_ranks = kSentMicroBatches * 512 + 1000, .to_replicas = 1024 + 512}));
  EXPECT_EQ(
      SentBy(1, 1, replication, {.ties = 1, .norm_bytes = 48, .replicas = 2}, ties),
      (SentBytes{.to_ranks = kSentMicroBatches * 512 + 1000 + 48, .to_replicas = 1024 + 512}));
}

// Results travel from the rank of the loss to the other, and from each replica to the other.
TEST(SentBytes, HaveTheResultsThatAreShared) {
  const schedule::CollectiveMemory results = {.result_bytes = 16, .replicas = 2};
  const Replication two = {.replicas = 2, .gradient_blocks = 2};
  EXPECT_EQ(SentBy(1, 0, {}, {.result_bytes = 16}).to_ranks,
            kSentMicroBatches * 512 + kSentMicroBatches * 16);
  EXPECT_EQ(SentBy(0, 0, {}, {.result_bytes = 16}).to_ranks, kSentMicroBatches * 512);
  const schedule::CollectiveMemory before_steps = {.result_bytes = 16,
                                                   .results_before_steps = true};
  EXPECT_EQ(SentBy(1, 0, {}, before_steps).to_ranks,
            kSentMicroBatches * 512 + kSentMicroBatches * 16);
  EXPECT_EQ(SentBy(0, 0, {}, before_steps).to_ranks, kSentMicroBatches * 512 + 8);
  const int64_t block_bytes = schedule::AlignBlock(kSentMicroBatches * 16);
  EXPECT_EQ(SentBy(0, 1, two, results).to_replicas - SentBy(0, 1, two).to_replicas, block_bytes);
}

TEST(SentBytes, HaveTheGradientsThatAreTied) {
  const std::vector<Tie> ties = {{.layer = 0, .other_layer = 1, .bytes = 1000}};
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(SentBy(rank, 0, {}, {.ties = 1}, ties).to_ranks, kSentMicroBatches * 512 + 1000)
        << rank;
  }
}

// Nobody wants the gradient of the data, and a layer that repeats F sends its sums again.
TEST(SentBytes, OfPartsAreTheSumsOfTheirLayers) {
  std::vector<LayerCost> layers(3);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].memory = {.parameter_bytes = 1024, .input_bytes = 512, .output_bytes = 512};
    layers[i].recompute_stash_bytes = 0;
    layers[i].forward_exchange.bytes = 1 << (4 * i);
    layers[i].input_gradient_exchange.bytes = 2 << (4 * i);
    layers[i].backward_exchange.bytes = 4 << (4 * i);
    layers[i].weight_exchange.bytes = 8 << (4 * i);
  }
  const Plan plan = {.first_layer = {0, 1},
                     .num_layers = 3,
                     .schedule = GeneratedSchedule("1f1b", kSentMicroBatches)(2).value(),
                     .tensor_parts = 4,
                     .recomputed = {2}};
  const schedule::CollectiveMemory collectives = {.norm_bytes = 24, .tensor_parts = 4};
  const CompiledPlan prepared =
      CompilePlan(plan, layers, {}, schedule::Transfers::kSeparate, collectives).value();
  const auto to_parts = [&](int rank) {
    return SentBytesOf(prepared, layers, {}, Rank(rank), 0).to_parts;
  };
  const int64_t norms = 3 * 2 * 24;  // of both ranks, to three others
  EXPECT_EQ(to_parts(0), kSentMicroBatches * (0x001 + 0x004 + 0x008) + norms);
  EXPECT_EQ(to_parts(1), kSentMicroBatches * (0x110 + 0x220 + 0x440 + 0x880 + 0x100) + norms);
  // On the first stage frozen layers have no B, and nobody wants the gradient of their output; the
  // next stage sends one all the same.
  layers[0].skips_backward = true;
  EXPECT_EQ(to_parts(0), kSentMicroBatches * 0x001 + norms);
  layers[1].skips_backward = true;
  EXPECT_EQ(to_parts(1), kSentMicroBatches * (0x110 + 0x220 + 0x440 + 0x880 + 0x100) + norms);
}

TEST(SentBytes, OfOneDeviceAreNone) {
  const CompiledPlan prepared = CompilePlan({.first_layer = {0},
                                             .num_layers = 1,
                                             .schedule = GeneratedSchedule("gpipe", 2)(1).value()},
                                            std::vector<LayerCost>(1), {})
                                    .value();
  EXPECT_EQ(SentBytesOf(prepared, {}, {}, Rank(0), 0), SentBytes());
}

}  // namespace
}  // namespace stagecoach::partition
