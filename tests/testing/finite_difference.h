#ifndef STAGECOACH_TESTS_TESTING_FINITE_DIFFERENCE_H_
#define STAGECOACH_TESTS_TESTING_FINITE_DIFFERENCE_H_

#include <cstddef>
#include <functional>
#include <vector>

namespace stagecoach::testing {

// Returns the gradient of a scalar function at x by central differences of fourth order:
//   f'(x) = (8 (f(x + h) - f(x - h)) - (f(x + 2h) - f(x - 2h))) / 12h + O(h^4 f^(5) / 30)
// With h = 2^-10 the truncation is about 3e-14 f^(5), the rounding about 3e-13 |f|.
inline std::vector<double> CentralDifferences(
    const std::function<double(const std::vector<double>&)>& f, std::vector<double> x) {
  constexpr double kStep = 0x1p-10;
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double center = x[i];
    const auto f_at = [&](double steps) {
      x[i] = center + steps * kStep;
      return f(x);
    };
    gradient[i] = (8.0 * (f_at(1) - f_at(-1)) - (f_at(2) - f_at(-2))) / (12.0 * kStep);
    x[i] = center;
  }
  return gradient;
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_FINITE_DIFFERENCE_H_
