#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace stagecoach::base {
namespace {

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, ExcludesOtherThreads) {
  constexpr int kThreads = 4;
  constexpr int kIncrements = 1000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&counter] {
      for (int i = 0; i < kIncrements; ++i) {
        MutexLock lock(counter.mutex);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, kThreads * kIncrements);
}

TEST(Mutex, TryLockFailsWhileHeld) {
  Mutex mutex;
  MutexLock lock(mutex);
  bool locked = true;
  std::thread([&mutex, &locked] {
    if (mutex.TryLock()) {
      mutex.Unlock();
    } else {
      locked = false;
    }
  }).join();
  EXPECT_FALSE(locked);
}

TEST(CondVar, WaitReturnsAfterNotification) {
  Counter counter;
  std::thread notifier([&counter] {
    MutexLock lock(counter.mutex);
    counter.value = 1;
    counter.changed.NotifyOne();
  });
  {
    MutexLock lock(counter.mutex);
    while (counter.value == 0) counter.changed.Wait(counter.mutex);
    EXPECT_EQ(counter.value, 1);
  }
  notifier.join();
}

TEST(CondVar, NotifyAllWakesEveryWaiter) {
  Counter counter;
  std::vector<std::thread> waiters;
  for (int t = 0; t < 3; ++t) {
    waiters.emplace_back([&counter] {
      MutexLock lock(counter.mutex);
      while (counter.value == 0) {
        ASSERT_TRUE(counter.changed.WaitUntil(counter.mutex, Deadline::After(absl::Minutes(4))));
      }
    });
  }
  {
    MutexLock lock(counter.mutex);
    counter.value = 1;
    counter.changed.NotifyAll();
  }
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(CondVar, WaitUntilGivesUpAtTheDeadline) {
  Counter counter;
  const Deadline deadline = Deadline::After(absl::Milliseconds(5));
  MutexLock lock(counter.mutex);
  while (counter.changed.WaitUntil(counter.mutex, deadline)) {
  }
  EXPECT_TRUE(deadline.Expired());
}

}  // namespace
}  // namespace stagecoach::base
