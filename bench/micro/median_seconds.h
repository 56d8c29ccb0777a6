#ifndef STAGECOACH_BENCH_MICRO_MEDIAN_SECONDS_H_
#define STAGECOACH_BENCH_MICRO_MEDIAN_SECONDS_H_

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/functional/function_ref.h"

namespace stagecoach::bench {

// Returns the duration of `body`, in seconds: the median of five rounds.
inline double MedianSeconds(absl::FunctionRef<void()> body) {
  constexpr int kRounds = 5;
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    body();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

}  // namespace stagecoach::bench

#endif  // STAGECOACH_BENCH_MICRO_MEDIAN_SECONDS_H_
