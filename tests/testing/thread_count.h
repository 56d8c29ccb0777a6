#ifndef STAGECOACH_TESTS_TESTING_THREAD_COUNT_H_
#define STAGECOACH_TESTS_TESTING_THREAD_COUNT_H_

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

namespace stagecoach::testing {

// How many threads the kernel lists of this process: among them those that have been joined but not
// yet reaped, a little later.
inline int ThreadsOfThisProcess() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                        std::filesystem::directory_iterator()));
}

// The same once there are `expected`, or after so long that no joined thread can still be among
// them.
inline int ThreadsOnceReaped(int expected) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (ThreadsOfThisProcess() != expected && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
  return ThreadsOfThisProcess();
}

// How many there are before a test has started any. To be called before the first one starts.
inline int ThreadsOfAnIdleProcess() {
  // A sanitizer starts a thread of its own with the first one of the program.
  std::string first;
  std::thread([&first] { first = "/proc/self/task/" + std::to_string(gettid()); }).join();
  while (std::filesystem::exists(first)) std::this_thread::yield();
  return ThreadsOfThisProcess();
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_THREAD_COUNT_H_
