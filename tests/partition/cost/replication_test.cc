#include "partition/cost/replication.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/cost/layer_cost.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;

TEST(Replication, KeepsASumOfTheBlockAtHandAndOfEachSubtreeThatWaits) {
  EXPECT_EQ(Replication().gradient_copies(), 1);
  EXPECT_EQ((Replication{1, 2}).gradient_copies(), 2);
  EXPECT_EQ((Replication{1, 4}).gradient_copies(), 3);
  EXPECT_EQ((Replication{2, 2}).gradient_copies(), 1);
  EXPECT_EQ((Replication{2, 4}).gradient_copies(), 2);
  EXPECT_EQ((Replication{4, 64}).gradient_copies(), 5);
  EXPECT_EQ((Replication{3, 3}).gradient_copies(), 1);
  EXPECT_EQ((Replication{1, 3}).gradient_copies(), 2);
  EXPECT_EQ((Replication{1, 7}).gradient_copies(), 3);
  EXPECT_EQ((Replication{3, 12}).gradient_copies(), 3);
  // Of blocks 3 to 5 the first is a half of a sum of the other replica.
  EXPECT_EQ((Replication{2, 6}).gradient_copies(), 3);
  // A library adds the only sum of each.
  EXPECT_EQ((Replication{2, 6, false, ReductionKind::kRing}).gradient_copies(), 2);
}

std::vector<BlockRange> SubtreesIn(int replica, int replicas, int blocks) {
  return SubtreesOf(replica, {.replicas = replicas, .gradient_blocks = blocks});
}

TEST(SubtreesOf, AreAllBlocksOfAReplicaWherePossible) {
  using Ranges = std::vector<BlockRange>;
  EXPECT_EQ(SubtreesIn(0, 1, 7), (Ranges{{0, 7}}));
  EXPECT_EQ(SubtreesIn(4, 5, 5), (Ranges{{4, 1}}));
  EXPECT_EQ(SubtreesIn(2, 3, 12), (Ranges{{8, 4}}));
  EXPECT_EQ(SubtreesIn(0, 2, 6), (Ranges{{0, 2}, {2, 1}}));
  EXPECT_EQ(SubtreesIn(1, 2, 6), (Ranges{{3, 1}, {4, 2}}));
  EXPECT_EQ(SubtreesIn(1, 2, 14), (Ranges{{7, 1}, {8, 6}}));
  EXPECT_EQ(SubtreesIn(1, 3, 15), (Ranges{{5, 1}, {6, 2}, {8, 2}}));
  EXPECT_EQ(SubtreesIn(2, 3, 15), (Ranges{{10, 2}, {12, 3}}));
  EXPECT_EQ(SubtreesOf(1, {2, 6, false, ReductionKind::kRing}), (Ranges{{3, 3}}));
}

// Finds the subtrees by going down from the root instead.
void AddSubtrees(BlockRange tree, int begin, int end, std::vector<BlockRange>& subtrees) {
  const int tree_end = tree.first + tree.count;
  if (tree_end <= begin || end <= tree.first) return;
  if (begin <= tree.first && tree_end <= end) {
    subtrees.push_back(tree);
    return;
  }
  int left = 1;
  while (2 * left < tree.count) left *= 2;
  AddSubtrees({tree.first, left}, begin, end, subtrees);
  AddSubtrees({tree.first + left, tree.count - left}, begin, end, subtrees);
}

TEST(SubtreesOf, AreThoseOfTheTreeOverAllBlocks) {
  for (int blocks = 1; blocks <= 60; ++blocks) {
    for (int replicas = 1; replicas <= blocks; ++replicas) {
      if (blocks % replicas != 0) continue;
      const int own = blocks / replicas;
      SumCounts counts = {.of_all = 0, .most = 0, .fewest = blocks};
      for (int replica = 0; replica < replicas; ++replica) {
        std::vector<BlockRange> expected;
        AddSubtrees({0, blocks}, replica * own, (replica + 1) * own, expected);
        EXPECT_EQ(SubtreesIn(replica, replicas, blocks), expected)
            << replica << " of " << replicas << ", " << blocks << " blocks";
        const auto sums = static_cast<int>(expected.size());
        counts.of_all += sums;
        counts.most = std::max(counts.most, sums);
        counts.fewest = std::min(counts.fewest, sums);
      }
      EXPECT_EQ(CountSums({replicas, blocks}), counts) << replicas << " " << blocks;
    }
  }
}

TEST(CheckReplication, AcceptsWhatDividesEvenly) {
  EXPECT_OK(CheckReplication({1, 1}, 7));
  EXPECT_OK(CheckReplication({1, 4}, 12));
  EXPECT_OK(CheckReplication({4, 4}, 4));
  EXPECT_OK(CheckReplication({4096, 4096}, 8192));
  EXPECT_OK(CheckReplication({3, 3}, 9));
  EXPECT_OK(CheckReplication({2, 6}, 12));
}

TEST(CheckReplication, SaysWhatToChange) {
  const auto is = [](const auto&... parts) { return ::testing::Eq(absl::StrCat(parts...)); };
  ExpectRefusals({
      {CheckReplication({0, 1}, 8), is("0 replicas: expected 1 to 4096")},
      {CheckReplication({8192, 8192}, 8192), is("8192 replicas: expected 1 to 4096")},
      {CheckReplication({1, -4}, 12), is("-4 gradient blocks for 1 replica: use a multiple of the "
                                         "replicas, so that each has whole blocks")},
      {CheckReplication({4, 2}, 8), is("2 gradient blocks for 4 replicas: use a multiple of the "
                                       "replicas, so that each has whole blocks")},
      {CheckReplication({4, 6}, 12), is("6 gradient blocks for 4 replicas: use a multiple of the "
                                        "replicas, so that each has whole blocks")},
      {CheckReplication({2, 2}, 7), is("7 micro-batches cannot be divided evenly into 2 gradient "
                                       "blocks, one for each replica: use a multiple of 2")},
      {CheckReplication({3, 3}, 8), is("8 micro-batches cannot be divided evenly into 3 gradient "
                                       "blocks, one for each replica: use a multiple of 3")},
      {CheckReplication({2, 8}, 12),
       is("12 micro-batches cannot be divided evenly into 8 gradient blocks: use a multiple of 8")},
      {CheckReplication({1, 4, true}, 8), is("a sharded optimizer for 1 replica, which keeps all "
                                             "of it: use more replicas, or do not shard it")},
      {CheckReplication({1, 4, false, ReductionKind::kRing}, 8),
       is("a ring of 1 replica: use more replicas, or sum gradients in a tree")},
      {CheckReplication({2, 4, true, ReductionKind::kRing}, 8),
       is("a ring gives every replica all sums, but with a sharded optimizer each updates its "
          "shard: sum gradients in a tree, or do not shard it")},
  });
}

TEST(ShardBytes, AreAlignedAndCoverAll) {
  EXPECT_EQ(ShardBytes(1024, 1), 1024);
  EXPECT_EQ(ShardBytes(1024, 4), 256);
  EXPECT_EQ(ShardBytes(1024 + kTensorAlignment, 4), 256 + kTensorAlignment);
  EXPECT_EQ(ShardBytes(0, 4), 0);
}

TEST(ShardOf, DividesEachPartAmongTheReplicas) {
  constexpr int64_t kBytes = 2 * kReductionPartBytes + 5 * kTensorAlignment;
  EXPECT_EQ(ReductionParts(kBytes, {}), 3);
  EXPECT_EQ(ReductionParts(kBytes, {.part_bytes = kTensorAlignment}), kBytes / kTensorAlignment);
  EXPECT_EQ(ReductionParts(2 * kReductionPartBytes, {}), 2);
  EXPECT_EQ(ReductionParts(0, {}), 0);
  EXPECT_EQ(ShardOf(kBytes, 0, 1, {.replicas = 4}),
            (ByteRange{kReductionPartBytes / 4, kReductionPartBytes / 2}));
  for (const int replicas : {1, 2, 3, 4, 7, 8}) {
    int64_t next = 0;
    for (int64_t part = 0; part < 3; ++part) {
      for (int replica = 0; replica < replicas; ++replica) {
        const ByteRange shard = ShardOf(kBytes, part, replica, {.replicas = replicas});
        EXPECT_EQ(shard.begin, next) << part << " " << replica << " of " << replicas;
        EXPECT_EQ(shard.bytes() % kTensorAlignment, 0);
        next = shard.end;
      }
      EXPECT_EQ(next, std::min((part + 1) * kReductionPartBytes, kBytes));
    }
  }
}

TEST(WithPartsFor, TransfersInGroupsHasLargeOnes) {
  const Replication two = {.replicas = 2, .gradient_blocks = 2};
  EXPECT_EQ(WithPartsFor(schedule::Transfers::kSeparate, two), two);
  EXPECT_EQ(WithPartsFor(schedule::Transfers::kGrouped, two).part_bytes,
            kGroupedReductionPartBytes);
  EXPECT_EQ(WithPartsFor(schedule::Transfers::kGrouped, {}), Replication{});
}

TEST(CheckReplication, RefusesPartsThatAreNotAligned) {
  for (const int64_t bytes : {int64_t{0}, kTensorAlignment / 2, kTensorAlignment + 1}) {
    EXPECT_THAT(CheckReplication({.replicas = 2, .gradient_blocks = 2, .part_bytes = bytes}, 2),
                IsRefused("a multiple of 64"));
  }
}

// Two states, and 100 bytes of something else.
TEST(OptimizerBytes, AreThoseOfTheLargestShards) {
  constexpr int64_t kBytes = kReductionPartBytes + 3 * kTensorAlignment;
  EXPECT_EQ(OptimizerBytes(2 * kBytes + 100, kBytes, 0, {2, 2}), 2 * kBytes + 100);
  constexpr int64_t kShards = kReductionPartBytes / 2 + 2 * kTensorAlignment;
  EXPECT_EQ(OptimizerBytes(2 * kBytes, kBytes, 0, {2, 2, true}), 2 * kShards);
  EXPECT_EQ(OptimizerBytes(2 * kBytes + 100, kBytes, 0, {2, 2, true}),
            2 * kShards + kTensorAlignment);
  EXPECT_EQ(OptimizerBytes(0, 0, 0, {2, 2, true}), 0);
  // Averages among the parameters have no states, but leave gaps among the states of a shard.
  constexpr int64_t kAveraged = 5 * kTensorAlignment;
  EXPECT_EQ(OptimizerBytes(2 * (kBytes - kAveraged), kBytes, kAveraged, {2, 2, true}), 2 * kShards);
}

// One shard of each sum of the other replicas; of two parts at once, if there are two.
TEST(ReductionBytes, AreThoseOfTwoPartsFromAllOthers) {
  EXPECT_EQ(ReductionBytes(1024, {.replicas = 1}), 0);
  EXPECT_EQ(ReductionBytes(0, {4, 4}), 0);
  EXPECT_EQ(ReductionBytes(1024, {2, 2}), 512);
  EXPECT_EQ(ReductionBytes(1024, {2, 8}), 512);
  EXPECT_EQ(ReductionBytes(1024, {4, 4}), 3 * 256);
  EXPECT_EQ(ReductionBytes(1024, {3, 3}), 2 * 384);
  EXPECT_EQ(ReductionBytes(1024, {2, 6}), 2 * 512);
  // Of 15 blocks, the replicas have 2, 3 and 2 subtrees.
  EXPECT_EQ(ReductionBytes(1024, {3, 15}), (7 - 2) * 384);
  EXPECT_EQ(ReductionBytes(kReductionPartBytes, {4, 4}), 3 * kReductionPartBytes / 4);
  EXPECT_EQ(ReductionBytes(kReductionPartBytes + 1024, {4, 4}), 2 * 3 * kReductionPartBytes / 4);
  EXPECT_EQ(ReductionBytes(100 * kReductionPartBytes, {2, 2}), kReductionPartBytes);
  EXPECT_EQ(ReductionBytes(1024, {.replicas = 2, .gradient_blocks = 2, .part_bytes = 256}), 256);
  EXPECT_EQ(ReductionBytes(1024, {2, 2, false, ReductionKind::kRing}), 0);
}

TEST(RingBytes, AreTwiceTheShardsOfTheOthers) {
  EXPECT_EQ(RingBytes(1024, 1), 0);
  EXPECT_EQ(RingBytes(1024, 2), 1024);
  EXPECT_EQ(RingBytes(1024, 4), 2 * 3 * 256);
}

TEST(ReductionKind, HasNames) {
  for (const ReductionKind kind : {ReductionKind::kTree, ReductionKind::kRing}) {
    EXPECT_EQ(ParseReductionKind(Name(kind)).value(), kind);
  }
  EXPECT_THAT(ParseReductionKind("star"),
              IsRefused(::testing::Eq("\"star\": expected \"tree\" or \"ring\"")));
}

}  // namespace
}  // namespace stagecoach::partition
