#include "engine/data/sampler.h"

#include <algorithm>
#include <numeric>

#include "gtest/gtest.h"

namespace stagecoach::engine {
namespace {

TEST(EpochOrder, VisitsEveryRowOnce) {
  for (const int64_t rows : {0, 1, 2, 3, 10, 1000}) {
    for (const int64_t epoch : {0, 1, 17}) {
      std::vector<int64_t> order = EpochOrder(5, epoch, rows);
      std::sort(order.begin(), order.end());
      std::vector<int64_t> expected(rows);
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(order, expected) << rows << " rows, epoch " << epoch;
    }
  }
}

TEST(EpochOrder, DependsOnNothingButItsArguments) {
  EXPECT_EQ(EpochOrder(5, 3, 1000), EpochOrder(5, 3, 1000));
}

TEST(EpochOrder, DiffersBetweenEpochs) {
  EXPECT_NE(EpochOrder(5, 0, 1000), EpochOrder(5, 1, 1000));
}

TEST(EpochOrder, DiffersBetweenSeeds) { EXPECT_NE(EpochOrder(5, 0, 1000), EpochOrder(6, 0, 1000)); }

// Neighboring seeds and epochs must not have the same order, or a run would repeat another's.
TEST(EpochOrder, DiffersWhenSeedAndEpochTradePlaces) {
  EXPECT_NE(EpochOrder(1, 2, 1000), EpochOrder(2, 1, 1000));
}

TEST(EpochOrderDeathTest, AbortsOnANegativeEpoch) {
  EXPECT_DEATH(EpochOrder(5, -1, 10), "stream index");
}

}  // namespace
}  // namespace stagecoach::engine
