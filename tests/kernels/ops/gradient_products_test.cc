#include "kernels/cpu/ops/gradient_products.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::gradient_products_test {
namespace {

using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::RandomNormal;
using ::testing::Each;

// Nothing may be written between rows, or behind the scratch.
constexpr int64_t kGap = 3;
constexpr float kUntouched = 77.0F;

struct Extents {
  int64_t rows, inputs, outputs;
};

std::vector<float> Guarded(int64_t values) {
  return std::vector<float>(static_cast<size_t>(values + 16), kUntouched);
}

void ExpectGuarded(const std::vector<float>& scratch) {
  EXPECT_THAT(std::vector<float>(scratch.end() - 16, scratch.end()), Each(kUntouched));
}

class GradientProducts : public ::testing::TestWithParam<Extents> {
 protected:
  const Extents e_ = GetParam();
  const std::vector<float> x_ = RandomNormal(e_.rows * (e_.inputs + kGap), 1);
  const std::vector<float> w_ = RandomNormal(e_.inputs * e_.outputs, 2);
  const std::vector<float> dz_ = RandomNormal(e_.rows * e_.outputs, 3);
};

TEST_P(GradientProducts, OfInputsMatchPlainLoops) {
  const int64_t ld = e_.inputs + kGap;
  std::vector<float> dx(static_cast<size_t>(e_.rows * ld), kUntouched);
  std::vector<double> expected(dx.begin(), dx.end());
  std::vector<double> bounds(dx.size(), 0.0);
  for (int64_t r = 0; r < e_.rows; ++r) {
    for (int64_t i = 0; i < e_.inputs; ++i) {
      double sum = 0.0, sum_abs = 0.0;
      for (int64_t o = 0; o < e_.outputs; ++o) {
        const double term = double{dz_[static_cast<size_t>(r * e_.outputs + o)]} *
                            w_[static_cast<size_t>(i * e_.outputs + o)];
        sum += term;
        sum_abs += std::fabs(term);
      }
      expected[static_cast<size_t>(r * ld + i)] = sum;
      bounds[static_cast<size_t>(r * ld + i)] = DotBound(e_.outputs, sum_abs);
    }
  }
  std::vector<float> scratch = Guarded(InputGradientScratch(e_.rows, e_.inputs, e_.outputs));
  InputGradient(e_.rows, e_.inputs, e_.outputs, dz_.data(), w_.data(), dx.data(), ld,
                scratch.data());
  EXPECT_THAT(dx, CloseTo(expected, bounds));
  ExpectGuarded(scratch);
}

TEST_P(GradientProducts, OfWeightsMatchPlainLoops) {
  const int64_t ld = e_.inputs + kGap;
  for (const bool accumulate : {false, true}) {
    std::vector<float> dw = w_;
    std::vector<double> expected(dw.size()), bounds(dw.size());
    for (int64_t i = 0; i < e_.inputs; ++i) {
      for (int64_t o = 0; o < e_.outputs; ++o) {
        const auto at = static_cast<size_t>(i * e_.outputs + o);
        double sum = accumulate ? double{dw[at]} : 0.0;
        double sum_abs = std::fabs(sum);
        for (int64_t r = 0; r < e_.rows; ++r) {
          const double term = double{x_[static_cast<size_t>(r * ld + i)]} *
                              dz_[static_cast<size_t>(r * e_.outputs + o)];
          sum += term;
          sum_abs += std::fabs(term);
        }
        expected[at] = sum;
        bounds[at] = DotBound(e_.rows + 1, sum_abs);
      }
    }
    std::vector<float> scratch = Guarded(WeightGradientScratch(e_.rows, e_.inputs, e_.outputs));
    WeightGradient(e_.rows, e_.inputs, e_.outputs, x_.data(), ld, dz_.data(), accumulate, dw.data(),
                   scratch.data());
    EXPECT_THAT(dw, CloseTo(expected, bounds)) << "accumulate " << accumulate;
    ExpectGuarded(scratch);
  }
}

TEST_P(GradientProducts, HaveTheSameBitsInParts) {
  const int64_t ld = e_.inputs + kGap;
  // Pieces of the inputs.
  const auto add_inputs = [&](int64_t first, int64_t inputs, std::vector<float>& dx) {
    if (inputs == 0) return;
    std::vector<float> scratch = Guarded(InputGradientScratch(e_.rows, inputs, e_.outputs));
    InputGradient(e_.rows, inputs, e_.outputs, dz_.data(), w_.data() + first * e_.outputs,
                  dx.data() + first, ld, scratch.data());
  };
  std::vector<float> dx(static_cast<size_t>(e_.rows * ld)), dx_parts = dx;
  add_inputs(0, e_.inputs, dx);
  add_inputs(0, e_.inputs / 2, dx_parts);
  add_inputs(e_.inputs / 2, e_.inputs - e_.inputs / 2, dx_parts);
  EXPECT_EQ(dx, dx_parts);

  // Pieces of the rows, as in several micro-batches.
  const auto add_rows = [&](int64_t first, int64_t rows, std::vector<float>& dw) {
    if (rows == 0) return;
    std::vector<float> scratch = Guarded(WeightGradientScratch(rows, e_.inputs, e_.outputs));
    WeightGradient(rows, e_.inputs, e_.outputs, x_.data() + first * ld, ld,
                   dz_.data() + first * e_.outputs, /*accumulate=*/true, dw.data(), scratch.data());
  };
  std::vector<float> dw = w_, dw_parts = w_;
  add_rows(0, e_.rows, dw);
  add_rows(0, e_.rows / 3, dw_parts);
  add_rows(e_.rows / 3, e_.rows - e_.rows / 3, dw_parts);
  EXPECT_EQ(dw, dw_parts);
}

// Extents around blocks and panels, and with several pieces of each.
INSTANTIATE_TEST_SUITE_P(Extents, GradientProducts,
                         ::testing::Values(Extents{1, 1, 1}, Extents{3, 7, 5}, Extents{8, 8, 32},
                                           Extents{31, 9, 33}, Extents{33, 15, 63},
                                           Extents{64, 48, 64}, Extents{65, 17, 100},
                                           Extents{2, 5, 2600}, Extents{130, 40, 1300},
                                           Extents{300, 3, 1100}, Extents{290, 800, 40},
                                           Extents{257, 2, 3200}));

}  // namespace
}  // namespace stagecoach::kernels::gradient_products_test
