#include "kernels/ops/linear.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::linear_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::ActivationBound;
using ::stagecoach::testing::ActivationDerivativeBound;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::IsExact;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RandomUniform;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

// The operands of every call of one linear layer. y and z are consistent with each other but not
// with x: backward is tested on operands of its own.
struct Problem {
  explicit Problem(const LinearShape& shape_in) : shape(shape_in) {
    const int64_t R = shape.rows, I = shape.inputs, O = shape.outputs;
    x = RandomNormal(R * I, 1);
    w = RandomNormal(I * O, 2);
    if (shape.has_bias) b = RandomNormal(O, 3);
    dy = RandomNormal(R * O, 4);
    z = RandomUniform(-6.0F, 6.0F, R * O, 5);
    for (float value : z) {
      y.push_back(static_cast<float>(reference::Activate(shape.activation, value)));
    }
    dw = RandomNormal(I * O, 6);
    if (shape.has_bias) db = RandomNormal(O, 7);
  }

  LinearShape shape;
  std::vector<float> x, w, b, dy, z, y, dw, db;
};

// A problem on a device. The outputs of an operation hold not-a-number before it.
class OnDevice {
 public:
  explicit OnDevice(const Problem& problem, int threads = 1)
      : problem_(problem), shape_(problem.shape), device_(threads) {
    auto op = device_.ops().Create(shape_);
    EXPECT_OK(op);
    op_ = *std::move(op);
    workspace_ = device_.Workspace(op_->workspace_bytes());
  }

  struct ForwardResult {
    Tensor z, y;
  };
  ForwardResult Forward() {
    const Tensor z = keeps_z() ? device_.Result(outputs()) : Tensor{};
    const Tensor y = device_.Result(outputs());
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Forward(
          stream, device_.Operand(inputs(), problem_.x), w(),
          shape_.has_bias ? device_.Operand(Shape{shape_.outputs}, problem_.b) : Tensor{}, z, y,
          workspace_);
    }));
    return {z, y};
  }

  struct InputGradient {
    Tensor dz, dx;
  };
  // dz in memory of its own, or that of z; dx computed, or not asked for.
  InputGradient BackwardInput(bool in_place = false, bool want_dx = true) {
    const Tensor y = keeps_z() || shape_.activation == Activation::kNone
                         ? Tensor{}
                         : device_.Operand(outputs(), problem_.y);
    const Tensor z = keeps_z() ? device_.Operand(outputs(), problem_.z) : Tensor{};
    const Tensor dz = in_place                                 ? z
                      : shape_.activation == Activation::kNone ? Tensor{}
                                                               : device_.Result(outputs());
    const Tensor dx = want_dx ? device_.Result(inputs()) : Tensor{};
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardInput(stream, device_.Operand(outputs(), problem_.dy), y, z, w(), dz, dx,
                                workspace_);
    }));
    return {dz, dx};
  }

  struct WeightGradient {
    Tensor dw, db;
  };
  WeightGradient BackwardWeight(bool accumulate) {
    const Shape weights{shape_.inputs, shape_.outputs};
    const Shape biases{shape_.outputs};
    const Tensor dw = accumulate ? device_.Operand(weights, problem_.dw) : device_.Result(weights);
    const Tensor db = !shape_.has_bias ? Tensor{}
                      : accumulate     ? device_.Operand(biases, problem_.db)
                                       : device_.Result(biases);
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardWeight(stream, device_.Operand(inputs(), problem_.x),
                                 device_.Operand(outputs(), problem_.dy), dw, db, accumulate,
                                 workspace_);
    }));
    return {dw, db};
  }

 private:
  bool keeps_z() const { return KeepsZ(shape_.activation); }
  Shape inputs() const { return {shape_.rows, shape_.inputs}; }
  Shape outputs() const { return {shape_.rows, shape_.outputs}; }
  Tensor w() { return device_.Operand(Shape{shape_.inputs, shape_.outputs}, problem_.w); }

  const Problem& problem_;
  const LinearShape shape_;
  TestDevice device_;
  std::unique_ptr<LinearOp> op_;
  std::byte* workspace_ = nullptr;
};

// The same layer without its activation, for sums of absolute values.
LinearShape Plain(LinearShape shape) {
  shape.activation = Activation::kNone;
  return shape;
}

void ExpectForwardMatchesReference(const Problem& problem) {
  OnDevice device(problem);
  const auto actual = device.Forward();
  const Vector x = ToDouble(problem.x), w = ToDouble(problem.w), b = ToDouble(problem.b);
  const auto expected = reference::LinearForward(problem.shape, x, w, b);
  const Vector sum_abs =
      reference::LinearForward(Plain(problem.shape), Magnitudes(x), Magnitudes(w), Magnitudes(b)).z;
  Vector z_bound, y_bound;
  for (size_t k = 0; k < sum_abs.size(); ++k) {
    z_bound.push_back(DotBound(problem.shape.inputs + 1, sum_abs[k]));
    y_bound.push_back(ActivationBound(problem.shape.activation, expected.z[k], z_bound[k]));
  }
  EXPECT_THAT(TestDevice::Values(actual.y), CloseTo(expected.y, y_bound));
  if (!actual.z.empty()) {
    EXPECT_THAT(TestDevice::Values(actual.z), CloseTo(expected.z, z_bound));
  }
}

void ExpectBackwardInputMatchesReference(const Problem& problem) {
  OnDevice device(problem);
  const auto actual = device.BackwardInput();
  const Vector dy = ToDouble(problem.dy), z = ToDouble(problem.z), w = ToDouble(problem.w);
  const auto expected = reference::LinearBackwardInput(problem.shape, dy, z, w);
  Vector dz_bound, dz_largest;
  for (size_t k = 0; k < dy.size(); ++k) {
    const double slope_error = ActivationDerivativeBound(problem.shape.activation, z[k]);
    dz_bound.push_back(IsExact(problem.shape.activation)
                           ? 0.0
                           : std::fabs(dy[k]) * slope_error + Gamma(1) * std::fabs(expected.dz[k]));
    dz_largest.push_back(std::fabs(expected.dz[k]) + dz_bound[k]);
  }
  const Vector w_abs = Magnitudes(w);
  const auto times_w = [&](const Vector& dz) {
    return reference::LinearBackwardInput(Plain(problem.shape), dz, z, w_abs).dx;
  };
  const Vector propagated = times_w(dz_bound), sum_abs = times_w(dz_largest);
  Vector dx_bound;
  for (size_t k = 0; k < sum_abs.size(); ++k) {
    dx_bound.push_back(propagated[k] + DotBound(problem.shape.outputs, sum_abs[k]));
  }
  EXPECT_THAT(TestDevice::Values(actual.dx), CloseTo(expected.dx, dx_bound));
  if (!actual.dz.empty()) {
    EXPECT_THAT(TestDevice::Values(actual.dz), CloseTo(expected.dz, dz_bound));
  }
}

void ExpectBackwardWeightMatchesReference(const Problem& problem, bool accumulate) {
  OnDevice device(problem);
  const auto actual = device.BackwardWeight(accumulate);
  const Vector x = ToDouble(problem.x), dz = ToDouble(problem.dy);
  auto expected = reference::LinearBackwardWeight(problem.shape, x, dz);
  auto sum_abs = reference::LinearBackwardWeight(problem.shape, Magnitudes(x), Magnitudes(dz));
  if (accumulate) {
    expected.dw = reference::Add(expected.dw, ToDouble(problem.dw));
    expected.db = reference::Add(expected.db, ToDouble(problem.db));
    sum_abs.dw = reference::Add(sum_abs.dw, Magnitudes(ToDouble(problem.dw)));
    sum_abs.db = reference::Add(sum_abs.db, Magnitudes(ToDouble(problem.db)));
  }
  const auto bounds = [&](Vector sums) {
    for (double& sum : sums) sum = DotBound(problem.shape.rows + 1, sum);
    return sums;
  };
  EXPECT_THAT(TestDevice::Values(actual.dw), CloseTo(expected.dw, bounds(sum_abs.dw)));
  if (!problem.shape.has_bias) return;
  EXPECT_THAT(TestDevice::Values(actual.db), CloseTo(expected.db, bounds(sum_abs.db)));
}

using Extents = std::tuple<int64_t, int64_t, int64_t>;  // rows, inputs, outputs

class CpuLinear : public ::testing::TestWithParam<std::tuple<Extents, Activation>> {
 protected:
  static LinearShape ShapeOfCase() {
    const auto& [extents, activation] = GetParam();
    const auto& [rows, inputs, outputs] = extents;
    return {.rows = rows, .inputs = inputs, .outputs = outputs, .activation = activation};
  }
  const Problem problem_{ShapeOfCase()};
};

TEST_P(CpuLinear, ForwardMatchesReference) { ExpectForwardMatchesReference(problem_); }

TEST_P(CpuLinear, BackwardInputMatchesReference) { ExpectBackwardInputMatchesReference(problem_); }

TEST_P(CpuLinear, BackwardWeightOverwritesWithReference) {
  ExpectBackwardWeightMatchesReference(problem_, /*accumulate=*/false);
}

TEST_P(CpuLinear, BackwardWeightAddsReference) {
  ExpectBackwardWeightMatchesReference(problem_, /*accumulate=*/true);
}

std::string CaseName(const ::testing::TestParamInfo<CpuLinear::ParamType>& info) {
  const auto& [extents, activation] = info.param;
  const auto& [rows, inputs, outputs] = extents;
  return absl::StrCat(rows, "x", inputs, "x", outputs, "_", ActivationName(activation));
}

// One row, one input, one output; odd sizes; sizes around those of tiles and vectors.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuLinear,
    ::testing::Combine(::testing::Values(Extents{1, 1, 1}, Extents{1, 7, 1}, Extents{3, 1, 5},
                                         Extents{5, 4, 1}, Extents{1, 784, 10}, Extents{17, 33, 65},
                                         Extents{64, 100, 37}, Extents{16, 577, 609},
                                         Extents{130, 20, 1200}),
                       ::testing::ValuesIn(kAllActivations)),
    CaseName);

class CpuLinearWithoutBias : public ::testing::TestWithParam<Activation> {
 protected:
  const Problem problem_{LinearShape{
      .rows = 17, .inputs = 33, .outputs = 601, .activation = GetParam(), .has_bias = false}};
};

TEST_P(CpuLinearWithoutBias, MatchesReference) {
  ExpectForwardMatchesReference(problem_);
  ExpectBackwardInputMatchesReference(problem_);
  ExpectBackwardWeightMatchesReference(problem_, /*accumulate=*/false);
  ExpectBackwardWeightMatchesReference(problem_, /*accumulate=*/true);
}

INSTANTIATE_TEST_SUITE_P(Activations, CpuLinearWithoutBias, ::testing::ValuesIn(kAllActivations),
                         [](const auto& param_info) { return ActivationName(param_info.param); });

class CpuLargeLinear : public ::testing::Test {
 protected:
  const Problem problem_{
      LinearShape{.rows = 64, .inputs = 2304, .outputs = 2304, .activation = Activation::kGelu}};
};

TEST_F(CpuLargeLinear, ForwardMatchesReference) { ExpectForwardMatchesReference(problem_); }

TEST_F(CpuLargeLinear, BackwardInputMatchesReference) {
  ExpectBackwardInputMatchesReference(problem_);
}

TEST_F(CpuLargeLinear, BackwardWeightMatchesReference) {
  ExpectBackwardWeightMatchesReference(problem_, /*accumulate=*/true);
}

TEST(CpuLinearBackwardInput, WithoutDxGivesTheSameDz) {
  for (const Activation activation :
       {Activation::kRelu, Activation::kGelu, Activation::kGeluExact}) {
    const Problem problem({.rows = 19, .inputs = 30, .outputs = 41, .activation = activation});
    OnDevice both(problem), dz_only(problem);
    EXPECT_EQ(BytesOf(dz_only.BackwardInput(/*in_place=*/false, /*want_dx=*/false).dz),
              BytesOf(both.BackwardInput().dz))
        << ActivationName(activation);
  }
}

TEST(CpuLinearBackwardInput, WithoutDxAndActivationHasNothingToDo) {
  const Problem problem({.rows = 19, .inputs = 30, .outputs = 41});
  OnDevice device(problem);
  device.BackwardInput(/*in_place=*/false, /*want_dx=*/false);
}

TEST(CpuLinearBackwardInput, DzMayBeTheMemoryOfZ) {
  const Problem problem({.rows = 19, .inputs = 30, .outputs = 41, .activation = Activation::kGelu});
  OnDevice separate(problem), in_place(problem);
  const auto expected = separate.BackwardInput();
  const auto actual = in_place.BackwardInput(/*in_place=*/true);
  EXPECT_EQ(BytesOf(actual.dz), BytesOf(expected.dz));
  EXPECT_EQ(BytesOf(actual.dx), BytesOf(expected.dx));
}

// Extents of several tiles, so that the threads share the work.
TEST(CpuLinearThreads, AnyNumberGivesTheSameBits) {
  const Problem problem(
      {.rows = 67, .inputs = 1300, .outputs = 1201, .activation = Activation::kGelu});
  OnDevice one(problem, 1);
  const auto forward = one.Forward();
  const auto input_gradient = one.BackwardInput();
  const auto weight_gradient = one.BackwardWeight(/*accumulate=*/true);
  for (int threads : {2, 3}) {
    SCOPED_TRACE(absl::StrCat(threads, " threads"));
    OnDevice several(problem, threads);
    EXPECT_EQ(BytesOf(several.Forward().y), BytesOf(forward.y));
    const auto [dz, dx] = several.BackwardInput();
    EXPECT_EQ(BytesOf(dz), BytesOf(input_gradient.dz));
    EXPECT_EQ(BytesOf(dx), BytesOf(input_gradient.dx));
    const auto [dw, db] = several.BackwardWeight(/*accumulate=*/true);
    EXPECT_EQ(BytesOf(dw), BytesOf(weight_gradient.dw));
    EXPECT_EQ(BytesOf(db), BytesOf(weight_gradient.db));
  }
}

class CpuLinearRefusal : public ::testing::TestWithParam<LinearShape> {};

TEST_P(CpuLinearRefusal, IsAnInvalidArgument) {
  TestDevice device;
  EXPECT_THAT(device.ops().Create(GetParam()), StatusIs(absl::StatusCode::kInvalidArgument));
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
INSTANTIATE_TEST_SUITE_P(Extents, CpuLinearRefusal,
                         ::testing::Values(LinearShape{.rows = 0}, LinearShape{.rows = -1},
                                           LinearShape{.inputs = 0}, LinearShape{.inputs = -1},
                                           LinearShape{.outputs = 0}, LinearShape{.outputs = -1},
                                           LinearShape{.rows = kHuge}, LinearShape{.inputs = kHuge},
                                           LinearShape{.outputs = kHuge}));

}  // namespace
}  // namespace stagecoach::kernels::linear_test
