#include "tests/kernels/cuda/linear_problem.h"

#include "tests/testing/close_to.h"
#include "tests/testing/reference.h"

namespace stagecoach::testing {
namespace {

namespace reference = kernels::reference;
using kernels::Activation;
using kernels::LinearShape;
using reference::Vector;

// What products do to their operands: with tf32 they keep 10 bits after the leading one, and which
// way they round is not said.
double OperandError(kernels::Precision precision) {
  return precision == kernels::Precision::kTf32 ? 0x1p-10 : 0.0;
}

// A bound for a sum of `terms` products of operands, where `sum_abs` is the sum of their absolute
// values.
double ProductBound(kernels::Precision precision, int64_t terms, double sum_abs) {
  const double operand = OperandError(precision);
  const double moved = (2.0 + operand) * operand * sum_abs;
  return moved + DotBound(terms, sum_abs + moved);
}

// The same layer without its activation, for sums of absolute values.
LinearShape Plain(LinearShape shape) {
  shape.activation = Activation::kNone;
  return shape;
}

}  // namespace

void ExpectForward(const LinearProblem& problem) {
  LinearOnGpu gpu(problem);
  const auto actual = gpu.Forward();
  const Vector x = ToDouble(problem.x), w = ToDouble(problem.w), b = ToDouble(problem.b);
  const auto expected = reference::LinearForward(problem.shape, x, w, b);
  const Vector sum_abs =
      reference::LinearForward(Plain(problem.shape), Magnitudes(x), Magnitudes(w), Magnitudes(b)).z;
  Vector z_bound, y_bound;
  for (size_t k = 0; k < sum_abs.size(); ++k) {
    // The product may have been stored before the bias was added.
    const double product = expected.z[k] - (b.empty() ? 0.0 : b[k % b.size()]);
    const double product_bound = problem.Stored(
        product, ProductBound(problem.precision, problem.shape.inputs + 1, sum_abs[k]));
    z_bound.push_back(problem.Stored(expected.z[k], product_bound));
    const Activation activation = problem.shape.activation;
    y_bound.push_back(IsExact(activation)
                          ? z_bound[k]
                          : problem.Stored(expected.y[k],
                                           ActivationBound(activation, expected.z[k], z_bound[k])));
  }
  EXPECT_THAT(gpu.bench().Values(actual.y), CloseTo(expected.y, y_bound));
  if (!actual.z.empty()) {
    EXPECT_THAT(gpu.bench().Values(actual.z), CloseTo(expected.z, z_bound));
  }
}

void ExpectBackwardInput(const LinearProblem& problem) {
  LinearOnGpu gpu(problem);
  const auto actual = gpu.BackwardInput();
  const Vector dy = ToDouble(problem.dy), z = ToDouble(problem.z), w = ToDouble(problem.w);
  const auto expected = reference::LinearBackwardInput(problem.shape, dy, z, w);
  Vector dz_bound, dz_largest;
  for (size_t k = 0; k < dy.size(); ++k) {
    const Activation activation = problem.shape.activation;
    const double slope_error = ActivationDerivativeBound(activation, z[k], problem.type);
    dz_bound.push_back(
        IsExact(activation)
            ? 0.0
            : problem.Stored(expected.dz[k], std::fabs(dy[k]) * slope_error +
                                                 DotBound(1, std::fabs(expected.dz[k]))));
    dz_largest.push_back(std::fabs(expected.dz[k]) + dz_bound[k]);
  }
  const Vector w_abs = Magnitudes(w);
  const auto times_w = [&](const Vector& dz) {
    return reference::LinearBackwardInput(Plain(problem.shape), dz, z, w_abs).dx;
  };
  const Vector propagated = times_w(dz_bound), sum_abs = times_w(dz_largest);
  Vector dx_bound;
  for (size_t k = 0; k < sum_abs.size(); ++k) {
    dx_bound.push_back(problem.Stored(
        expected.dx[k],
        propagated[k] + ProductBound(problem.precision, problem.shape.outputs, sum_abs[k])));
  }
  EXPECT_THAT(gpu.bench().Values(actual.dx), CloseTo(expected.dx, dx_bound));
  if (!actual.dz.empty()) {
    EXPECT_THAT(gpu.bench().Values(actual.dz), CloseTo(expected.dz, dz_bound));
  }
}

void ExpectBackwardWeight(const LinearProblem& problem, bool accumulate) {
  LinearOnGpu gpu(problem);
  const auto actual = gpu.BackwardWeight(accumulate);
  const Vector x = ToDouble(problem.x), dz = ToDouble(problem.dy);
  auto expected = reference::LinearBackwardWeight(problem.shape, x, dz);
  auto sum_abs = reference::LinearBackwardWeight(problem.shape, Magnitudes(x), Magnitudes(dz));
  if (accumulate) {
    expected.dw = reference::Add(expected.dw, ToDouble(problem.dw));
    expected.db = reference::Add(expected.db, ToDouble(problem.db));
    sum_abs.dw = reference::Add(sum_abs.dw, Magnitudes(ToDouble(problem.dw)));
    sum_abs.db = reference::Add(sum_abs.db, Magnitudes(ToDouble(problem.db)));
  }
  // One more term for what was there, one more rounding where a sum is stored in between.
  const auto bounds = [&](Vector sums) {
    for (double& sum : sums) sum = ProductBound(problem.precision, problem.shape.rows + 2, sum);
    return sums;
  };
  EXPECT_THAT(gpu.bench().Values(actual.dw), CloseTo(expected.dw, bounds(sum_abs.dw)));
  if (!problem.shape.has_bias) return;
  EXPECT_THAT(gpu.bench().Values(actual.db), CloseTo(expected.db, bounds(sum_abs.db)));
}

void ExpectTheSameBitsAtOnceAndApart(const LinearProblem& problem) {
  LinearOnGpu gpu(problem);
  using Way = LinearOnGpu::Way;
  const auto apart = gpu.Backward(Way::kApart);
  for (const Way way : {Way::kAtOnce, Way::kAside}) {
    const auto once = gpu.Backward(way);
    EXPECT_EQ(gpu.bench().Bytes(once.dz), gpu.bench().Bytes(apart.dz));
    EXPECT_EQ(gpu.bench().Bytes(once.dx), gpu.bench().Bytes(apart.dx));
    EXPECT_EQ(gpu.bench().Bytes(once.dw), gpu.bench().Bytes(apart.dw));
    if (!problem.shape.has_bias) continue;
    EXPECT_EQ(gpu.bench().Bytes(once.db), gpu.bench().Bytes(apart.db));
  }
}

}  // namespace stagecoach::testing
