#include "base/system/futex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

namespace stagecoach::base {
namespace {

// Returns a deadline so long that only a lost wake-up reaches it.
Deadline Generous() { return Deadline::After(absl::Minutes(4)); }

void Store(std::atomic<uint32_t>& word, uint32_t value) {
  word.store(value, std::memory_order_release);
  WakeAll(word);
}

TEST(WaitWhileEqual, ReturnsAtOnceWhenTheWordDiffers) {
  const std::atomic<uint32_t> word = 7;
  EXPECT_TRUE(WaitWhileEqual(word, 6, Deadline::Never()));
}

TEST(WaitWhileEqual, PrefersTheChangeToAnExpiredDeadline) {
  const std::atomic<uint32_t> word = 7;
  EXPECT_TRUE(WaitWhileEqual(word, 6, Deadline::After(absl::ZeroDuration())));
}

TEST(WaitWhileEqual, ReturnsFalseAtAnExpiredDeadline) {
  const std::atomic<uint32_t> word = 7;
  EXPECT_FALSE(WaitWhileEqual(word, 7, Deadline::After(absl::Seconds(-1))));
}

TEST(WaitWhileEqual, SleepsUntilTheDeadlineAndNotLess) {
  const std::atomic<uint32_t> word = 7;
  const Deadline deadline = Deadline::After(absl::Milliseconds(5));
  EXPECT_FALSE(WaitWhileEqual(word, 7, deadline));
  EXPECT_TRUE(deadline.Expired());
}

TEST(WaitWhileEqual, SeesWhatWasWrittenBeforeTheChange) {
  std::atomic<uint32_t> word = 0;
  int payload = 0;
  std::thread writer([&] {
    payload = 42;
    Store(word, 1);
  });
  ASSERT_TRUE(WaitWhileEqual(word, 0, Generous()));
  EXPECT_EQ(payload, 42);
  writer.join();
}

TEST(WaitWhileEqual, IgnoresWakesWithoutAChange) {
  std::atomic<uint32_t> word = 7;
  std::atomic<bool> stop = false;
  std::thread waker([&] {
    while (!stop.load()) WakeAll(word);
  });
  EXPECT_FALSE(WaitWhileEqual(word, 7, Deadline::After(absl::Milliseconds(20))));
  stop.store(true);
  waker.join();
}

TEST(WaitWhileEqual, WorksWithTheLargestValues) {
  std::atomic<uint32_t> word = std::numeric_limits<uint32_t>::max();
  std::thread writer([&] { Store(word, 0); });
  EXPECT_TRUE(WaitWhileEqual(word, std::numeric_limits<uint32_t>::max(), Deadline::Never()));
  writer.join();
}

TEST(WakeAll, WakesEveryWaiter) {
  std::atomic<uint32_t> word = 0;
  std::atomic<int> woken = 0;
  std::vector<std::thread> waiters;
  for (int t = 0; t < 4; ++t) {
    waiters.emplace_back([&] {
      if (WaitWhileEqual(word, 0, Generous())) ++woken;
    });
  }
  Store(word, 1);
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(woken.load(), 4);
}

// There are more threads than many machines have cores, each waiting for its turn: no hand-over is
// lost.
TEST(WaitWhileEqual, PassesATokenAroundFourThreads) {
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kHops = 4000;
  std::atomic<uint32_t> word = 0;
  uint32_t hops = 0;  // guarded by the token
  const auto pass = [&](uint32_t self) {
    while (true) {
      const uint32_t turn = word.load(std::memory_order_acquire);
      if (turn >= kHops) return;
      if (turn % kThreads != self) {
        ASSERT_TRUE(WaitWhileEqual(word, turn, Generous()));
        continue;
      }
      ++hops;
      Store(word, turn + 1);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) threads.emplace_back(pass, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hops, kHops);
}

}  // namespace
}  // namespace stagecoach::base
