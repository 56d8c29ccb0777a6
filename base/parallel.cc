#include "base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace stagecoach::base {

int AvailableCpus() {
  cpu_set_t cpus;
  // Fails if there are more CPUs than the set has room for.
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return CPU_COUNT(&cpus);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void ForEachInParallel(int64_t count, int threads, absl::FunctionRef<void(int64_t)> work) {
  std::atomic<int64_t> next{0};
  const auto take_turns = [&] {
    for (int64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < std::min<int64_t>(threads, count); ++i) {
    try {
      others.emplace_back(take_turns);
    } catch (const std::system_error&) {
      break;
    }
  }
  take_turns();
  for (std::thread& thread : others) thread.join();
}

}  // namespace stagecoach::base
