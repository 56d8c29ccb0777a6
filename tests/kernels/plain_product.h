#ifndef STAGECOACH_TESTS_KERNELS_PLAIN_PRODUCT_H_
#define STAGECOACH_TESTS_KERNELS_PLAIN_PRODUCT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/testing/tolerance.h"

namespace stagecoach::testing {

// What c, with rows of `ldc` numbers, is after a product (m, n) of k terms each: exact to within
// `bounds`, and unchanged between rows.
struct PlainProduct {
  // `a_at(i, l)` and `b_at(l, j)` return the operands' elements.
  template <typename A, typename B>
  PlainProduct(int64_t m, int64_t n, int64_t k, A a_at, B b_at, bool accumulate,
               const std::vector<float>& c, int64_t ldc)
      : expected(c.begin(), c.end()), bounds(c.size()) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<size_t>(i * ldc + j);
        double sum = accumulate ? expected[at] : 0.0;
        double sum_abs = std::fabs(sum);
        for (int64_t l = 0; l < k; ++l) {
          const double term = static_cast<double>(a_at(i, l)) * b_at(l, j);
          sum += term;
          sum_abs += std::fabs(term);
        }
        expected[at] = sum;
        bounds[at] = DotBound(k + 1, sum_abs);
      }
    }
  }

  std::vector<double> expected, bounds;
};

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_KERNELS_PLAIN_PRODUCT_H_
