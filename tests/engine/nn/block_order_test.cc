#include "engine/nn/block_order.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace stagecoach::engine {
namespace {

using kernels::Shape;

// Returns, for each stored element, which it is of the whole.
std::vector<int64_t> WholeOf(const Shape& whole, const BlockOrder& order, int64_t first,
                             int64_t count) {
  std::vector<int64_t> elements;
  ForEachRun(whole, order, first, count, [&](const ElementRun& run) {
    EXPECT_EQ(run.stored, first + std::ssize(elements));
    for (int64_t i = 0; i < run.count; ++i) elements.push_back(run.whole + i);
  });
  return elements;
}

TEST(BlockOrder, StoresBlockAfterBlock) {
  // Two rows; four columns of queries, two of keys.
  const Shape whole{2, 6};
  EXPECT_EQ(WholeOf(whole, {.blocks = 2, .axis = 1, .extents = {4, 2}}, 0, 12),
            (std::vector<int64_t>{0, 1, 4, 6, 7, 10, 2, 3, 5, 8, 9, 11}));
  EXPECT_EQ((BlockOrder{.blocks = 2, .axis = 1, .extents = {4, 2}}.BlockOf(whole)), (Shape{2, 3}));
  EXPECT_EQ(WholeOf(Shape{6}, {.blocks = 2, .axis = 0, .extents = {4, 2}}, 0, 6),
            (std::vector<int64_t>{0, 1, 4, 2, 3, 5}));
}

TEST(BlockOrder, KeepsWhatIsNotCut) {
  const BlockOrder order{.blocks = 4, .axis = BlockOrder::kOnlyFirst, .extents = {}};
  EXPECT_EQ(WholeOf(Shape{3}, order, 1, 2), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(order.BlockOf(Shape{3}), Shape{3});
}

// Rows that are cut lie as they do in the whole: one run.
TEST(BlockOrder, JoinsRuns) {
  int runs = 0;
  ForEachRun(Shape{8, 5}, {.blocks = 4, .axis = 0, .extents = {8}}, 0, 40,
             [&](const ElementRun& run) {
               EXPECT_EQ(run, (ElementRun{.whole = 0, .stored = 0, .count = 40}));
               ++runs;
             });
  EXPECT_EQ(runs, 1);
}

TEST(BlockOrder, DividesIntoAnyRanges) {
  const Shape whole{3, 8, 2};
  const BlockOrder order{.blocks = 2, .axis = 1, .extents = {4, 2, 2}};
  const std::vector<int64_t> all = WholeOf(whole, order, 0, whole.elements());
  std::vector<int64_t> sorted = all;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> expected(all.size());
  std::iota(expected.begin(), expected.end(), int64_t{0});
  EXPECT_EQ(sorted, expected);
  for (int64_t first = 0; first < whole.elements(); ++first) {
    for (int64_t count = 0; first + count <= whole.elements(); ++count) {
      EXPECT_EQ(WholeOf(whole, order, first, count),
                std::vector<int64_t>(all.begin() + first, all.begin() + first + count));
    }
  }
}

}  // namespace
}  // namespace stagecoach::engine
