#include "kernels/cpu/ops/tile_product.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::tile_product_test {
namespace {

using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::RandomNormal;

// Leading dimensions exceed the extents: nothing may be written between rows.
constexpr int64_t kGap = 3;

class TileProductTest : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(TileProductTest, MatchesPlainLoops) {
  const auto [m, n, k] = GetParam();
  for (const bool transposed : {false, true}) {
    for (const bool accumulate : {false, true}) {
      const std::vector<float> a = RandomNormal(m * k, 1);
      const std::vector<float> b = RandomNormal(k * (n + kGap), 2);
      std::vector<float> c = RandomNormal(m * (n + kGap), 3);
      std::vector<double> expected(c.begin(), c.end());
      std::vector<double> bounds(expected.size());
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const auto at = static_cast<size_t>(i * (n + kGap) + j);
          double sum = accumulate ? expected[at] : 0.0;
          double sum_abs = std::fabs(sum);
          for (int64_t l = 0; l < k; ++l) {
            const double factor = a[static_cast<size_t>(transposed ? l * m + i : i * k + l)];
            const double term = factor * b[static_cast<size_t>(l * (n + kGap) + j)];
            sum += term;
            sum_abs += std::fabs(term);
          }
          expected[at] = sum;
          bounds[at] = DotBound(k + 1, sum_abs);
        }
      }
      const TileOperand operand =
          transposed ? TileOperand{a.data(), 1, m} : TileOperand{a.data(), k, 1};
      TileProduct(m, n, k, operand, {b.data(), n + kGap}, accumulate, c.data(), n + kGap);
      EXPECT_THAT(c, CloseTo(expected, bounds))
          << "transposed " << transposed << ", accumulate " << accumulate;
    }
  }
}

// Extents around the sizes of blocks and vectors.
INSTANTIATE_TEST_SUITE_P(Extents, TileProductTest,
                         ::testing::Combine(::testing::Values(1, 3, 8, 15, 64),
                                            ::testing::Values(1, 4, 7, 16, 31, 32, 64, 77),
                                            ::testing::Values(1, 5, 64)));

}  // namespace
}  // namespace stagecoach::kernels::tile_product_test
