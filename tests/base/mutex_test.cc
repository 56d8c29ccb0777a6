#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace stagecoach::base {
namespace {

struct Counter {
  Mutex mutex;
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

}  // namespace
}  // namespace stagecoach::base
