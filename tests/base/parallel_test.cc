#include "base/parallel.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::base {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(ForEachInParallel, DoesEachOnce) {
  for (const int threads : {1, 2, 7}) {
    for (const size_t count : {0U, 1U, 2U, 1000U}) {
      std::vector<int> calls(count, 0);
      ForEachInParallel(static_cast<int64_t>(count), threads,
                        [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      EXPECT_THAT(calls, Each(1)) << threads;
    }
  }
}

TEST(ForEachInParallel, OfOneThreadKeepsOrderAndThread) {
  const std::thread::id own = std::this_thread::get_id();
  std::vector<int64_t> order;
  ForEachInParallel(3, 1, [&](int64_t i) {
    EXPECT_EQ(std::this_thread::get_id(), own);
    order.push_back(i);
  });
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
}

// Each call waits for the other.
TEST(ForEachInParallel, RunsCallsAtOnce) {
  std::atomic<int> arrived{0};
  ForEachInParallel(2, 2, [&](int64_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(AvailableCpus, IsNoMoreThanTheMachineHas) {
  EXPECT_GE(AvailableCpus(), 1);
  EXPECT_LE(AvailableCpus(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace stagecoach::base
