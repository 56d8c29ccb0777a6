#include "engine/data/chat/packing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PackIntoRows, PutsEachItemIntoTheFullestRowThatHasRoom) {
  // The items of 7 and 6 open a row each; that of 4 goes beside the 6, and that of 3 beside the 7.
  EXPECT_THAT(PackIntoRows({3, 6, 7, 4}, 10), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(PackIntoRows({1, 1, 1}, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(PackIntoRows({5, 5}, 5), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(PackIntoRows({}, 5), IsEmpty());
}

// Returns the smallest number of rows, by trying all of them.
size_t FewestRows(const std::vector<int64_t>& lengths, int64_t capacity, size_t next,
                  std::vector<int64_t>& rows) {
  if (next == lengths.size()) return rows.size();
  rows.push_back(lengths[next]);
  size_t fewest = FewestRows(lengths, capacity, next + 1, rows);
  rows.pop_back();
  for (size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] + lengths[next] > capacity) continue;
    rows[row] += lengths[next];
    fewest = std::min(fewest, FewestRows(lengths, capacity, next + 1, rows));
    rows[row] -= lengths[next];
  }
  return fewest;
}

TEST(PackIntoRows, HasEachItemOnceInRowsThatAreFewAndInOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto capacity = static_cast<int64_t>(1 + random() % 30);
    std::vector<int64_t> lengths(1 + random() % 8);
    for (int64_t& length : lengths) {
      length = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(capacity));
    }
    const auto rows = PackIntoRows(lengths, capacity);
    std::vector<int> times(lengths.size());
    int64_t before = -1;
    for (const std::vector<int64_t>& row : rows) {
      int64_t total = 0;
      EXPECT_TRUE(std::is_sorted(row.begin(), row.end()));
      EXPECT_GT(row.front(), before);
      before = row.front();
      for (const int64_t item : row) {
        total += lengths[static_cast<size_t>(item)];
        ++times[static_cast<size_t>(item)];
      }
      EXPECT_LE(total, capacity);
    }
    EXPECT_THAT(times, ::testing::Each(1));
    std::vector<int64_t> none;
    const size_t fewest = FewestRows(lengths, capacity, 0, none);
    EXPECT_LE(static_cast<double>(rows.size()), 11.0 / 9.0 * static_cast<double>(fewest) + 1.0);
  }
}

TEST(PackIntoRows, FillsLongRowsWithManyItems) {
  std::mt19937 random(2);
  std::vector<int64_t> lengths(200'000);
  for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % 700);
  const auto rows = PackIntoRows(lengths, 2048);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_GT(static_cast<double>(total) / static_cast<double>(rows.size() * 2048), 0.999);
}

}  // namespace
}  // namespace stagecoach::engine
