#ifndef STAGECOACH_TESTS_KERNELS_CUDA_LINEAR_CASES_H_
#define STAGECOACH_TESTS_KERNELS_CUDA_LINEAR_CASES_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/kernels/cuda/gpu_bench.h"
#include "tests/kernels/cuda/linear_problem.h"

// Tests of linear layers of several shapes in all precisions.
namespace stagecoach::testing {

using LinearExtents = std::tuple<int64_t, int64_t, int64_t>;  // rows, inputs, outputs
using LinearCase = std::tuple<LinearExtents, kernels::Activation, kernels::Precision>;

class LinearCaseTest : public GpuTest, public ::testing::WithParamInterface<LinearCase> {
 protected:
  LinearCaseTest() : problem_(ProblemOf(GetParam())) {}

  const LinearProblem problem_;

 private:
  static LinearProblem ProblemOf(const LinearCase& linear_case) {
    const auto& [extents, activation, precision] = linear_case;
    const auto& [rows, inputs, outputs] = extents;
    return LinearProblem(
        {.rows = rows, .inputs = inputs, .outputs = outputs, .activation = activation}, precision);
  }
};

inline auto AllActivations() { return ::testing::ValuesIn(kernels::kAllActivations); }

inline auto AllPrecisions() {
  return ::testing::Values(kernels::Precision::kFloat32, kernels::Precision::kTf32,
                           kernels::Precision::kBfloat16);
}

inline std::string LinearCaseName(const ::testing::TestParamInfo<LinearCase>& info) {
  const auto& [extents, activation, precision] = info.param;
  const auto& [rows, inputs, outputs] = extents;
  return absl::StrCat(rows, "x", inputs, "x", outputs, "_", kernels::ActivationName(activation),
                      "_", kernels::PrecisionName(precision));
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_KERNELS_CUDA_LINEAR_CASES_H_
