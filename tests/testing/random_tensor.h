#ifndef STAGECOACH_TESTS_TESTING_RANDOM_TENSOR_H_
#define STAGECOACH_TESTS_TESTING_RANDOM_TENSOR_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace stagecoach::testing {

// Return test operands: the same values in every run. Operands of one test use different streams,
// which makes them independent.
std::vector<float> RandomNormal(int64_t elements, uint64_t stream);
std::vector<float> RandomUniform(float lo, float hi, int64_t elements, uint64_t stream);
// Returns labels in [0, classes).
std::vector<int32_t> RandomLabels(int64_t rows, int64_t classes, uint64_t stream);

// Returns each value rounded to `type`: the numbers that a tensor of that type can hold.
std::vector<float> RoundedTo(kernels::DType type, std::vector<float> values);

// Returns the same numbers for the reference in double precision.
std::vector<double> ToDouble(absl::Span<const float> values);
// Returns the absolute values, for error bounds.
std::vector<double> Magnitudes(absl::Span<const double> values);

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_RANDOM_TENSOR_H_
