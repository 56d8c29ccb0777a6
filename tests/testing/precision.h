#ifndef STAGECOACH_TESTS_TESTING_PRECISION_H_
#define STAGECOACH_TESTS_TESTING_PRECISION_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::testing {

// Why a test of that precision on CPU devices has to be skipped on this machine.
inline absl::Status HasOnCpu(kernels::Precision precision) {
  return precision == kernels::Precision::kBfloat16 ? kernels::CheckBfloat16OnCpu()
                                                    : absl::OkStatus();
}

// What `k` roundings to bfloat16 one after the other do to a tensor that comes out of a network, to
// first order and relative to the largest of it: 2 sqrt(k) u. Their errors are independent and have
// mean 0, so they add as squares do (Higham & Mary 2019, "A new approach to probabilistic rounding
// error analysis"); the worst case, k u, is met by none of many elements.
inline double ProbableErrorOfBfloat16(int64_t k) {
  return 2.0 * std::sqrt(static_cast<double>(k)) *
         PrecisionOf(kernels::DType::kBfloat16).unit_roundoff;
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_PRECISION_H_
