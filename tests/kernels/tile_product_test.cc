#include "kernels/cpu/ops/tile_product.h"

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/plain_product.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::kernels::tile_product_test {
namespace {

using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::PlainProduct;
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
      const PlainProduct plain(
          m, n, k,
          [&, m = m, k = k](int64_t i, int64_t l) {  // Clang 14 refuses the bindings themselves.
            return a[static_cast<size_t>(transposed ? l * m + i : i * k + l)];
          },
          [&, n = n](int64_t l, int64_t j) { return b[static_cast<size_t>(l * (n + kGap) + j)]; },
          accumulate, c, n + kGap);
      const TileOperand operand =
          transposed ? TileOperand{a.data(), 1, m} : TileOperand{a.data(), k, 1};
      TileProduct(m, n, k, operand, {b.data(), n + kGap}, accumulate, c.data(), n + kGap);
      EXPECT_THAT(c, CloseTo(plain.expected, plain.bounds))
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
