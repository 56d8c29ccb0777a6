#ifndef STAGECOACH_KERNELS_CPU_PRODUCTS_LANE_SUM_H_
#define STAGECOACH_KERNELS_CPU_PRODUCTS_LANE_SUM_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace stagecoach::kernels {

// Sums term(0) + ... + term(n - 1) in a fixed number of lanes, so that the compiler may use vectors
// and the result does not depend on how wide they are.
template <typename Term>
float LaneSum(int64_t n, Term term) {
  constexpr int64_t kLanes = 32;
  std::array<float, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[static_cast<size_t>(lane)] += term(i + lane);
    }
  }
  for (; i < n; ++i) lanes[static_cast<size_t>(i % kLanes)] += term(i);
  float sum = 0.0F;
  for (float lane : lanes) sum += lane;
  return sum;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_PRODUCTS_LANE_SUM_H_
