#ifndef STAGECOACH_TESTS_TESTING_TOLERANCE_H_
#define STAGECOACH_TESTS_TESTING_TOLERANCE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/swiglu.h"
#include "kernels/tensor.h"

// Bounds for the distance of a correct implementation from the exact result, derived from the
// arithmetic, none fitted to the results of an implementation. They hold for any order of
// summation, with and without fused multiply-add, so one bound serves every backend. (Higham,
// "Accuracy and Stability of Numerical Algorithms", 2nd ed., chapters 2 to 4.)
//
// The rule behind most of them: if every path from an operand to the result passes at most k
// roundings, the error is at most Gamma(k) times the same expression with absolute values of all
// its terms.
namespace stagecoach::testing {

struct Precision {
  double unit_roundoff;  // u: one rounding turns x into x (1 + d), |d| <= u
  double underflow;      // results smaller than this may become zero, or this
  double elementary;     // exp, log, tanh, sqrt and division: relative error in units of u
};

// Returns the only table of precisions. Integers are exact.
const Precision& PrecisionOf(kernels::DType dtype);

// Returns gamma_k = k u / (1 - k u), which bounds the relative effect of k successive roundings.
// Pre-condition: k u < 1.
double Gamma(int64_t k, kernels::DType dtype = kernels::DType::kFloat32);

// Returns the bound of a sum of n products x_i y_i, where sum_abs is the sum of |x_i y_i|: gamma_n
// sum_abs.
double DotBound(int64_t n, double sum_abs, kernels::DType dtype = kernels::DType::kFloat32);

// Returns the bound of a value near `value` that was computed in float32 to within `bound` and then
// stored as `dtype`.
double StoredBound(double value, double bound, kernels::DType dtype);

// Returns the bound of activation(z), computed in float32, if the z that it was computed from is
// off by at most `z_error`.
double ActivationBound(kernels::Activation activation, double z, double z_error);

// Returns whether everything that is computed, forward and backward, is an operand or 0.
bool IsExact(kernels::Activation activation);

// Returns the bound of activation'(z), from z if that is kept, and otherwise from activation(z) as
// it is stored.
double ActivationDerivativeBound(kernels::Activation activation, double z,
                                 kernels::DType dtype = kernels::DType::kFloat32);

// Returns the bounds of each element of SwiGluOp's results for these operands, computed in float32.
std::vector<double> SwiGluForwardBounds(const kernels::SwiGluShape& shape,
                                        absl::Span<const double> x);
std::vector<double> SwiGluBackwardBounds(const kernels::SwiGluShape& shape,
                                         absl::Span<const double> dy, absl::Span<const double> x);

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_TOLERANCE_H_
