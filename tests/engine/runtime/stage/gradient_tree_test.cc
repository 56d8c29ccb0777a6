#include "engine/runtime/stage/gradient_tree.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "partition/cost/replication.h"

namespace stagecoach::engine {
namespace {

// Performs the sums of one replica with texts for gradients; returns what its copies have at the
// end. Micro-batches are counted over all replicas.
std::string SumsOf(int micro_batches, int replica, const partition::Replication& replication) {
  const GradientTree order(micro_batches, replica, replication);
  std::map<int, std::string> copies;
  int most = 0;
  for (int i = 0; i < micro_batches; ++i) {
    int top = order.CopyOf(i);
    most = std::max(most, top + 1);
    std::string& copy = copies[top];
    const int number = replica * micro_batches + i;
    if (order.is_first(i)) {
      EXPECT_EQ(copy, "") << "micro-batch " << i << " overwrites a sum that is still needed";
      copy = absl::StrCat(number);
    } else {
      absl::StrAppend(&copy, "+", number);
    }
    for (int merges = order.MergesAfter(i); merges > 0; --merges, --top) {
      copies[top - 1] = absl::StrCat("(", copies[top - 1], " ", copies[top], ")");
      copies.erase(top);
    }
  }
  EXPECT_LE(most, replication.gradient_copies());
  if (replica == replication.replicas - 1) {
    EXPECT_EQ(most, replication.gradient_copies());
  }
  std::vector<std::string> sums;
  for (const auto& [copy, sum] : copies) {
    EXPECT_EQ(copy, static_cast<int>(sums.size())) << "there is a gap below " << sum;
    sums.push_back(sum);
  }
  return absl::StrJoin(sums, ", ");
}

std::string SumOf(int micro_batches, int blocks) { return SumsOf(micro_batches, 0, {1, blocks}); }

TEST(GradientTree, OneBlockIsASumInOrder) { EXPECT_EQ(SumOf(3, 1), "0+1+2"); }

TEST(GradientTree, BlocksAreSummedInABalancedTree) {
  EXPECT_EQ(SumOf(2, 2), "(0 1)");
  EXPECT_EQ(SumOf(6, 2), "(0+1+2 3+4+5)");
  EXPECT_EQ(SumOf(4, 4), "((0 1) (2 3))");
  EXPECT_EQ(SumOf(8, 8), "(((0 1) (2 3)) ((4 5) (6 7)))");
  EXPECT_EQ(SumOf(16, 8), "(((0+1 2+3) (4+5 6+7)) ((8+9 10+11) (12+13 14+15)))");
}

TEST(GradientTree, TheLeftHalfIsAPowerOfTwo) {
  EXPECT_EQ(SumOf(3, 3), "((0 1) 2)");
  EXPECT_EQ(SumOf(10, 5), "(((0+1 2+3) (4+5 6+7)) 8+9)");
  EXPECT_EQ(SumOf(7, 7), "(((0 1) (2 3)) ((4 5) 6))");
}

TEST(GradientTree, AReplicaSumsTheSubtreesOfItsBlocks) {
  EXPECT_EQ(SumsOf(1, 2, {3, 3}), "2");
  EXPECT_EQ(SumsOf(4, 1, {3, 6}), "(4+5 6+7)");
  EXPECT_EQ(SumsOf(3, 0, {2, 6}), "(0 1), 2");
  EXPECT_EQ(SumsOf(3, 1, {2, 6}), "3, (4 5)");
  EXPECT_EQ(SumsOf(7, 1, {2, 14}), "7, (((8 9) (10 11)) (12 13))");
  EXPECT_EQ(SumsOf(3, 1, {2, 6, false, partition::ReductionKind::kRing}), "((3 4) 5)");
}

TEST(GradientTree, ManyBlocksKeepTheTreeBalanced) {
  for (const int blocks : {33, 48, 63, 64}) {
    const std::string sum = SumOf(blocks, blocks);
    int depth = 0, deepest = 0;
    for (const char c : sum) {
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      deepest = std::max(deepest, depth);
    }
    EXPECT_EQ(deepest, 6);
  }
}

}  // namespace
}  // namespace stagecoach::engine
