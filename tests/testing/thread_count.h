#ifndef STAGECOACH_TESTS_TESTING_THREAD_COUNT_H_
#define STAGECOACH_TESTS_TESTING_THREAD_COUNT_H_

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

namespace stagecoach::testing {

// Returns how many threads the kernel lists for this process; for a moment these include threads
// that have been joined but not yet reaped.
inline int ThreadsOfThisProcess() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                        std::filesystem::directory_iterator()));
}

// Returns the same once there are `expected`, or after such a long time that no joined thread can
// still be counted.
inline int ThreadsOnceReaped(int expected) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (ThreadsOfThisProcess() != expected && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
  return ThreadsOfThisProcess();
}

// Returns how many there are before a test has started any. Must be called before the first one
// starts.
inline int ThreadsOfAnIdleProcess() {
  // A sanitizer starts a thread of its own with the program's first thread.
  std::string first;
  std::thread([&first] { first = "/proc/self/task/" + std::to_string(gettid()); }).join();
  while (std::filesystem::exists(first)) std::this_thread::yield();
  return ThreadsOfThisProcess();
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_THREAD_COUNT_H_
