#ifndef STAGECOACH_TESTS_TESTING_PRECISION_H_
#define STAGECOACH_TESTS_TESTING_PRECISION_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::testing {

// Returns why a test of that precision on CPU devices must be skipped on this machine.
inline absl::Status HasOnCpu(kernels::Precision precision) {
  return precision == kernels::Precision::kBfloat16 ? kernels::CheckBfloat16OnCpu()
                                                    : absl::OkStatus();
}

// Returns the effect of `k` successive roundings to bfloat16 on a tensor that comes out of a
// network, to first order and relative to its largest element: 2 sqrt(k) u. The errors are
// independent and have mean 0, so they add as squares do (Higham & Mary 2019, "A new approach to
// probabilistic rounding error analysis"); none of many elements meets the worst case, k u.
inline double ProbableErrorOfBfloat16(int64_t k) {
  return 2.0 * std::sqrt(static_cast<double>(k)) *
         PrecisionOf(kernels::DType::kBfloat16).unit_roundoff;
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_PRECISION_H_
