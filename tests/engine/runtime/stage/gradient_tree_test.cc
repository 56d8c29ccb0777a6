#include "engine/runtime/stage/gradient_tree.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partition/cost/replication.h"

namespace stagecoach::engine {
namespace {

// Performs the sums with texts for gradients; returns what copy 0 has at the end.
std::string SumOf(int micro_batches, int blocks) {
  const GradientTree order(micro_batches, blocks);
  std::map<int, std::string> copies;
  for (int i = 0; i < micro_batches; ++i) {
    std::string& copy = copies[order.CopyOf(i)];
    if (order.is_first(i)) {
      EXPECT_EQ(copy, "") << "micro-batch " << i << " overwrites a sum that is still needed";
      copy = absl::StrCat(i);
    } else {
      absl::StrAppend(&copy, "+", i);
    }
    for (const GradientTree::Merge& merge : order.MergesAfter(i)) {
      const std::string sum = absl::StrCat("(", copies[merge.left], " ", copies[0], ")");
      copies[merge.left] = copies[0] = "";
      copies[merge.to] = sum;
    }
  }
  const int most = partition::Replication{1, blocks}.gradient_copies();
  EXPECT_LT(copies.rbegin()->first, most);
  EXPECT_EQ(copies.rbegin()->first, most - 1);
  return copies[0];
}

TEST(GradientTree, OneBlockIsASumInOrder) { EXPECT_EQ(SumOf(3, 1), "0+1+2"); }

TEST(GradientTree, BlocksAreSummedInABalancedTree) {
  EXPECT_EQ(SumOf(2, 2), "(0 1)");
  EXPECT_EQ(SumOf(6, 2), "(0+1+2 3+4+5)");
  EXPECT_EQ(SumOf(4, 4), "((0 1) (2 3))");
  EXPECT_EQ(SumOf(8, 8), "(((0 1) (2 3)) ((4 5) (6 7)))");
  EXPECT_EQ(SumOf(16, 8), "(((0+1 2+3) (4+5 6+7)) ((8+9 10+11) (12+13 14+15)))");
}

TEST(GradientTree, ManyBlocksKeepTheTreeBalanced) {
  const std::string sum = SumOf(64, 64);
  int depth = 0, deepest = 0;
  for (const char c : sum) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    deepest = std::max(deepest, depth);
  }
  EXPECT_EQ(deepest, 6);
}

}  // namespace
}  // namespace stagecoach::engine
