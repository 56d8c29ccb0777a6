#include "kernels/ops/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::optimizer_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

// What both optimizers work on: a parameter, its gradient, a first moment and a second, which is
// not negative.
struct Problem {
  explicit Problem(int64_t elements)
      : parameter(RandomNormal(elements, 1)),
        gradient(RandomNormal(elements, 2)),
        m(RandomNormal(elements, 3)),
        v(RandomNormal(elements, 4)) {
    for (float& value : v) value *= value;
  }
  Shape shape() const { return {static_cast<int64_t>(parameter.size())}; }

  std::vector<float> parameter, gradient, m, v;
};

// A step's coefficients, and the factor of its gradients.
struct ScaledAdamW {
  AdamWStep step;
  float scale = 1.0F;
};
struct ScaledSgd {
  SgdStep step;
  float scale = 1.0F;
};

Tensor Scale(TestDevice& device, float scale) {
  return scale == 1.0F ? Tensor{} : device.Operand(Shape{1}, {scale});
}

struct AdamWTensors {
  Tensor parameter, m, v;
};
AdamWTensors RunAdamW(TestDevice& device, ScaledAdamW scaled, const Problem& problem) {
  const Shape shape = problem.shape();
  const Tensor gradient = device.Operand(shape, problem.gradient);
  const AdamWTensors state{device.Operand(shape, problem.parameter),
                           device.Operand(shape, problem.m), device.Operand(shape, problem.v)};
  scaled.step.gradient_scale = Scale(device, scaled.scale);
  EXPECT_OK(device.Run([&](Stream& stream) -> absl::Status {
    OptimizerOps& ops = device.ops().optimizer();
    ASSIGN_OR_RETURN(const auto group, ops.CreateGroup(stream, {{.value = state.parameter,
                                                                 .gradient = gradient,
                                                                 .states = {state.m, state.v}}}));
    return ops.AdamW(stream, scaled.step, *group);
  }));
  return state;
}

struct SgdTensors {
  Tensor parameter, momentum;
};
SgdTensors RunSgd(TestDevice& device, ScaledSgd scaled, const Problem& problem) {
  const Shape shape = problem.shape();
  const Tensor gradient = device.Operand(shape, problem.gradient);
  const SgdTensors state{device.Operand(shape, problem.parameter),
                         device.Operand(shape, problem.m)};
  scaled.step.gradient_scale = Scale(device, scaled.scale);
  EXPECT_OK(device.Run([&](Stream& stream) -> absl::Status {
    OptimizerOps& ops = device.ops().optimizer();
    ASSIGN_OR_RETURN(const auto group, ops.CreateGroup(stream, {{.value = state.parameter,
                                                                 .gradient = gradient,
                                                                 .states = {state.momentum}}}));
    return ops.Sgd(stream, scaled.step, *group);
  }));
  return state;
}

Tensor RunSquaredNorm(TestDevice& device, const std::vector<float>& values) {
  const Tensor x = device.Operand(Shape{static_cast<int64_t>(values.size())}, values);
  const Tensor result = device.Result(Shape{1}, DType::kFloat64);
  EXPECT_OK(device.Run([&](Stream& stream) -> absl::Status {
    OptimizerOps& ops = device.ops().optimizer();
    ASSIGN_OR_RETURN(const auto group, ops.CreateGroup(stream, {{.gradient = x}}));
    return ops.SquaredNorms(stream, *group, result);
  }));
  return result;
}

void ExpectAdamWMatchesReference(const ScaledAdamW& scaled, const Problem& problem) {
  TestDevice device;
  const AdamWStep& step = scaled.step;
  const AdamWTensors actual = RunAdamW(device, scaled, problem);
  reference::AdamWState expected{ToDouble(problem.parameter), ToDouble(problem.m),
                                 ToDouble(problem.v)};
  reference::AdamW(step, ToDouble(problem.gradient), expected, scaled.scale);
  const double t = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), t);
  Vector parameter_bound, m_bound, v_bound;
  for (size_t k = 0; k < problem.parameter.size(); ++k) {
    const double g = std::fabs(problem.gradient[k] * static_cast<double>(scaled.scale));
    const double m_abs = step.beta1 * std::fabs(problem.m[k]) + (1.0 - step.beta1) * g;
    const double p_abs = std::fabs(problem.parameter[k]);
    const double denominator = std::sqrt(expected.v[k] / correction2) + step.epsilon;
    m_bound.push_back(Gamma(4) * m_abs);
    v_bound.push_back(Gamma(5) * expected.v[k]);
    // The longest path, through v and the root, has 5 roundings for v, 4 for the root, 4 each for
    // two divisions and 7 for the rest.
    parameter_bound.push_back(
        Gamma(24) * (p_abs + step.learning_rate *
                                 (m_abs / correction1 / denominator + step.weight_decay * p_abs)));
  }
  EXPECT_THAT(TestDevice::Values(actual.parameter), CloseTo(expected.parameter, parameter_bound));
  EXPECT_THAT(TestDevice::Values(actual.m), CloseTo(expected.m, m_bound));
  EXPECT_THAT(TestDevice::Values(actual.v), CloseTo(expected.v, v_bound));
}

void ExpectSgdMatchesReference(const ScaledSgd& scaled, const Problem& problem) {
  TestDevice device;
  const SgdStep& step = scaled.step;
  const SgdTensors actual = RunSgd(device, scaled, problem);
  reference::SgdState expected{ToDouble(problem.parameter), ToDouble(problem.m)};
  reference::Sgd(step, ToDouble(problem.gradient), expected, scaled.scale);
  Vector parameter_bound, momentum_bound;
  for (size_t k = 0; k < problem.parameter.size(); ++k) {
    const double p_abs = std::fabs(problem.parameter[k]);
    const double m_abs = step.momentum * std::fabs(problem.m[k]) +
                         std::fabs(problem.gradient[k] * scaled.scale) + step.weight_decay * p_abs;
    momentum_bound.push_back(Gamma(4) * m_abs);
    parameter_bound.push_back(Gamma(6) * (p_abs + step.learning_rate * m_abs));
  }
  EXPECT_THAT(TestDevice::Values(actual.parameter), CloseTo(expected.parameter, parameter_bound));
  EXPECT_THAT(TestDevice::Values(actual.momentum), CloseTo(expected.momentum, momentum_bound));
}

// Below, at and above the sizes of vectors and tiles.
class CpuOptimizer : public ::testing::TestWithParam<int64_t> {
 protected:
  const Problem problem_{GetParam()};
};

TEST_P(CpuOptimizer, AdamWMatchesReference) {
  ExpectAdamWMatchesReference({{.learning_rate = 0.01F, .weight_decay = 0.1F, .step = 3}, 0.25F},
                              problem_);
}

TEST_P(CpuOptimizer, SgdMatchesReference) {
  ExpectSgdMatchesReference({{.weight_decay = 0.1F}, 0.25F}, problem_);
}

TEST_P(CpuOptimizer, SquaredNormMatchesReferenceInDouble) {
  TestDevice device;
  const Tensor result = RunSquaredNorm(device, problem_.gradient);
  const double expected = reference::SquaredNorm(ToDouble(problem_.gradient));
  EXPECT_NEAR(*result.f64(), expected, 2.0 * Gamma(GetParam(), DType::kFloat64) * expected);
}

INSTANTIATE_TEST_SUITE_P(Elements, CpuOptimizer,
                         ::testing::Values(1, 2, 7, 16, 33, 1000, 65536, 65537, 200001),
                         ::testing::PrintToStringParamName());

class CpuAdamW : public ::testing::TestWithParam<ScaledAdamW> {};

TEST_P(CpuAdamW, MatchesReference) { ExpectAdamWMatchesReference(GetParam(), Problem(101)); }

// The first step, where the corrections are largest, and one so late that they are gone; every term
// alone.
INSTANTIATE_TEST_SUITE_P(Steps, CpuAdamW,
                         ::testing::Values(ScaledAdamW{{.step = 1}}, ScaledAdamW{{.step = 2}},
                                           ScaledAdamW{{.step = 1000000}},
                                           ScaledAdamW{{.beta1 = 0.0F, .beta2 = 0.0F}},
                                           ScaledAdamW{{.epsilon = 1.0F}},
                                           ScaledAdamW{{.weight_decay = 1.0F}},
                                           ScaledAdamW{{}, -4.0F}));

TEST(CpuAdamWStep, ParameterThatNeverHadAGradientStays) {
  Problem problem(3);
  problem.gradient = problem.m = problem.v = {0.0F, 0.0F, 0.0F};
  TestDevice device;
  EXPECT_EQ(TestDevice::Values(RunAdamW(device, {{.step = 1}}, problem).parameter),
            ToDouble(problem.parameter));
}

class CpuSgd : public ::testing::TestWithParam<ScaledSgd> {};

TEST_P(CpuSgd, MatchesReference) { ExpectSgdMatchesReference(GetParam(), Problem(101)); }

INSTANTIATE_TEST_SUITE_P(Steps, CpuSgd,
                         ::testing::Values(ScaledSgd{}, ScaledSgd{{.momentum = 0.0F}},
                                           ScaledSgd{{.weight_decay = 1.0F}},
                                           ScaledSgd{{}, -4.0F}));

// As ClipScale gives it for a norm that is not finite.
TEST(CpuOptimizerSteps, WithAScaleThatIsNoNumberChangeNothing) {
  const Problem problem(101);
  const float scale = std::numeric_limits<float>::quiet_NaN();
  TestDevice device;
  const AdamWTensors adamw = RunAdamW(device, {{.weight_decay = 0.1F}, scale}, problem);
  EXPECT_EQ(TestDevice::Values(adamw.parameter), ToDouble(problem.parameter));
  EXPECT_EQ(TestDevice::Values(adamw.m), ToDouble(problem.m));
  EXPECT_EQ(TestDevice::Values(adamw.v), ToDouble(problem.v));
  const SgdTensors sgd = RunSgd(device, {{.weight_decay = 0.1F}, scale}, problem);
  EXPECT_EQ(TestDevice::Values(sgd.parameter), ToDouble(problem.parameter));
  EXPECT_EQ(TestDevice::Values(sgd.momentum), ToDouble(problem.m));
}

// Squares of floats that are too large or too small for a float.
TEST(CpuSquaredNorm, HasTheRangeOfDouble) {
  TestDevice device;
  EXPECT_EQ(*RunSquaredNorm(device, {0x1p100F}).f64(), 0x1p200);
  EXPECT_EQ(*RunSquaredNorm(device, {0x1p-100F}).f64(), 0x1p-200);
}

// Each parameter of a group decays or not, and has its own place among the norms.
TEST(CpuParameterGroup, TreatsEachParameterByItself) {
  TestDevice device;
  const auto operand = [&](float value) { return device.Operand(Shape{2}, {value, value}); };
  const Tensor decaying = operand(4.0F), fixed = operand(4.0F);
  const Tensor squares = device.Result(Shape{2}, DType::kFloat64);
  EXPECT_OK(device.Run([&](Stream& stream) -> absl::Status {
    OptimizerOps& ops = device.ops().optimizer();
    ASSIGN_OR_RETURN(
        const auto group,
        ops.CreateGroup(stream,
                        {{.value = decaying, .gradient = operand(1.0F), .states = {operand(0.0F)}},
                         {.value = fixed,
                          .gradient = operand(3.0F),
                          .states = {operand(0.0F)},
                          .decays = false}}));
    RETURN_IF_ERROR(ops.SquaredNorms(stream, *group, squares));
    return ops.Sgd(stream, {.learning_rate = 0.5F, .weight_decay = 0.25F}, *group);
  }));
  EXPECT_EQ(TestDevice::Values(squares), (Vector{2.0, 18.0}));
  EXPECT_EQ(TestDevice::Values(decaying), (Vector{3.0, 3.0}));
  EXPECT_EQ(TestDevice::Values(fixed), (Vector{2.5, 2.5}));
}

// Rows are ranks, each of which has squares of its own parameters only.
Vector ClipScale(float clip_norm, double last_square = 12.0) {
  TestDevice device;
  const Tensor squares = device.Result(Shape{2, 3}, DType::kFloat64);
  std::copy_n(std::begin({9.0, 0.0, 0.0, 0.0, 4.0, last_square}), 6, squares.f64());
  const Tensor norm = device.Result(Shape{1}, DType::kFloat64);
  const Tensor scale = device.Result(Shape{1});
  EXPECT_OK(device.Run([&](Stream& stream) {
    return device.ops().optimizer().ClipScale(stream, squares, clip_norm, norm, scale);
  }));
  return {*norm.f64(), *scale.f32()};
}

// Whatever the optimizer, neither the step's coefficients nor its scale touch an average.
TEST(CpuMovingAverage, FollowsTheShareOfTheSum) {
  TestDevice device;
  OptimizerOps& ops = device.ops().optimizer();
  const Tensor value = device.Operand(Shape{3}, {1.0F, -2.0F, 8.0F});
  const Tensor sum = device.Operand(Shape{3}, {4.0F, 8.0F, 0.0F});
  const Tensor scale = device.Operand(Shape{1}, {0.125F});
  const Tensor squares = device.Result(Shape{1}, DType::kFloat64);
  ASSERT_OK(device.Run([&](Stream& stream) -> absl::Status {
    const auto group =
        ops.CreateGroup(
               stream,
               {{.value = value, .gradient = sum, .average = {{.momentum = 0.25F, .share = 0.5F}}}})
            .value();
    EXPECT_OK(ops.AdamW(stream, {.weight_decay = 0.5F, .gradient_scale = scale}, *group));
    EXPECT_EQ(TestDevice::Values(value), (std::vector<double>{1.25, -0.5, 6.0}));
    EXPECT_OK(ops.Sgd(stream, {.weight_decay = 0.5F, .gradient_scale = scale}, *group));
    EXPECT_EQ(TestDevice::Values(value), (std::vector<double>{1.4375, 0.625, 4.5}));
    return ops.SquaredNorms(stream, *group, squares);
  }));
  EXPECT_EQ(TestDevice::Values(squares), std::vector<double>{0.0});
}

TEST(CpuClipScale, ShrinksGradientsOfALargerNorm) {
  EXPECT_EQ(ClipScale(2.5F), (Vector{5.0, 0.5}));
}

TEST(CpuClipScale, LeavesGradientsOfASmallerNorm) {
  EXPECT_EQ(ClipScale(5.0F), (Vector{5.0, 1.0}));
  EXPECT_EQ(ClipScale(6.0F), (Vector{5.0, 1.0}));
  EXPECT_EQ(ClipScale(std::numeric_limits<float>::infinity()), (Vector{5.0, 1.0}));
}

TEST(CpuClipScale, IsNoNumberIfTheNormIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float clip_norm : {1.0F, kInfinity}) {
    EXPECT_TRUE(std::isnan(ClipScale(clip_norm, kInfinity)[1]));
    EXPECT_TRUE(std::isnan(ClipScale(clip_norm, std::nan(""))[1]));
  }
}

TEST(CpuOptimizerThreads, AnyNumberGivesTheSameBits) {
  const Problem problem(300001);
  TestDevice one(1);
  const AdamWTensors adamw = RunAdamW(one, {}, problem);
  const SgdTensors sgd = RunSgd(one, {}, problem);
  const Tensor norm = RunSquaredNorm(one, problem.gradient);
  for (int threads : {2, 3}) {
    TestDevice several(threads);
    EXPECT_EQ(BytesOf(RunAdamW(several, {}, problem).parameter), BytesOf(adamw.parameter));
    EXPECT_EQ(BytesOf(RunSgd(several, {}, problem).parameter), BytesOf(sgd.parameter));
    EXPECT_EQ(BytesOf(RunSquaredNorm(several, problem.gradient)), BytesOf(norm));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::optimizer_test
