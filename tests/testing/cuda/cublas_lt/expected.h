#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_EXPECTED_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_EXPECTED_H_

#include <vector>

#include "tests/testing/cuda/cublas_lt/problem.h"

namespace stagecoach::testing::cuda {

// The exact result, column by column, and the library's largest error.
struct ExpectedProduct {
  std::vector<double> values, bounds;         // D
  std::vector<double> bias, bias_bounds;      // the bias gradient
  std::vector<double> before, before_bounds;  // the operand of the activation
};

ExpectedProduct Expect(const BlasProblem& p);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_EXPECTED_H_
