#include "kernels/ops/activation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::activation_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::ActivationBound;
using ::stagecoach::testing::ActivationDerivativeBound;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::IsExact;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;

class ActivationTest : public OpTest<ActivationShape> {
 protected:
  // The values include some where activations are flat, and where ReLU begins.
  ActivationTest() {
    for (size_t i = 0; i < x_.size(); i += 3) x_[i] *= 8.0F;
    for (size_t i = 1; i < x_.size(); i += 5) x_[i] = 0.0F;
    x_ = Rounded(x_);
  }

  Activation activation() const { return shape().activation; }
  Shape matrix() const { return {shape().rows, shape().features}; }

  // Returns what the derivative is computed from.
  std::vector<float> Known() const {
    if (KeepsZ(activation())) return x_;
    std::vector<float> y;
    for (const float x : x_) y.push_back(static_cast<float>(reference::Activate(activation(), x)));
    return Rounded(y);
  }

  // Returns y, y of a sum, and dx.
  enum class Into { kResults, kOperands };
  std::array<Vector, 3> Compute(Into into = Into::kResults) const {
    return ResultsAtAnyAddress([&](OpBench& bench) {
      ActivationOp& op = bench.Create(shape());
      const bool in_place = into == Into::kOperands;
      const Tensor x = bench.Operand(matrix(), x_), addend = bench.Operand(matrix(), addend_);
      const Tensor dy = bench.Operand(matrix(), dy_), known = bench.Operand(matrix(), Known());
      const Tensor y = in_place ? bench.Operand(matrix(), x_) : bench.Result(matrix());
      const Tensor of_sum = in_place ? addend : bench.Result(matrix());
      const Tensor dx = in_place ? dy : bench.Result(matrix());
      bench.Run([&](Stream& stream) -> absl::Status {
        RETURN_IF_ERROR(op.Forward(stream, in_place ? y : x, {}, y));
        RETURN_IF_ERROR(op.Forward(stream, x, addend, of_sum));
        return op.BackwardInput(stream, dy, known, dx);
      });
      return std::array{y, of_sum, dx};
    });
  }

  // Returns the bound of activation(z), where z is a rounded sum or not.
  double Bound(double z, double z_error) const {
    return ActivationBound(activation(), z, z_error) + PrecisionOf(DType::kFloat32).underflow;
  }

  void ExpectMatchesReference() const {
    Vector y, y_bounds, of_sum, of_sum_bounds, dx, dx_bounds;
    for (size_t i = 0; i < x_.size(); ++i) {
      const double x = x_[i], sum = x + addend_[i], dy = dy_[i];
      y.push_back(reference::Activate(activation(), x));
      y_bounds.push_back(Bound(x, 0.0));
      of_sum.push_back(reference::Activate(activation(), sum));
      of_sum_bounds.push_back(Bound(sum, Gamma(1) * std::fabs(sum)));
      dx.push_back(dy * reference::ActivationDerivative(activation(), x));
      dx_bounds.push_back(std::fabs(dy) * ActivationDerivativeBound(activation(), x, type()) +
                          Gamma(1) * std::fabs(dx[i]));
    }
    const auto [actual_y, actual_of_sum, actual_dx] = Compute();
    EXPECT_THAT(actual_of_sum, Near(of_sum, of_sum_bounds));
    if (IsExact(activation())) {
      EXPECT_EQ(actual_y, y);
      EXPECT_EQ(actual_dx, dx);
    } else {
      EXPECT_THAT(actual_y, Near(y, y_bounds));
      EXPECT_THAT(actual_dx, Near(dx, dx_bounds));
    }
  }

  std::vector<float> x_ = RandomNormal(matrix().elements(), 1);
  const std::vector<float> addend_ = Rounded(RandomNormal(matrix().elements(), 2));
  const std::vector<float> dy_ = Rounded(RandomNormal(matrix().elements(), 3));
};

TEST_P(ActivationTest, MatchesReference) { ExpectMatchesReference(); }

TEST_P(ActivationTest, ResultsMayOverwriteOperands) {
  const auto expected = Compute(), actual = Compute(Into::kOperands);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_THAT(actual[i], HasTheBitsOf(expected[i]));
}

TEST_P(ActivationTest, PassesOnWhatIsNotANumber) {
  const size_t at[] = {0, x_.size() / 2, x_.size() - 1};
  for (const size_t i : at) x_[i] = std::numeric_limits<float>::quiet_NaN();
  const Vector y = Compute()[0];
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), std::isnan(x_[i])) << i;
}

std::string NameOf(const ActivationShape& shape) {
  return absl::StrCat(ActivationName(shape.activation), "_", shape.rows, "x", shape.features);
}

std::vector<ActivationShape> Cases(const std::vector<Shape>& shapes, bool with_none = true) {
  std::vector<ActivationShape> cases;
  for (const Activation activation : kAllActivations) {
    if (activation == Activation::kNone && !with_none) continue;
    for (const Shape& shape : shapes) cases.push_back({shape.dim(0), shape.dim(1), activation});
  }
  return cases;
}
INSTANTIATE_OP_TEST_FROM(ActivationTest, NameOf, Cases({{1, 1}, {3, 3}, {5, 24}, {1, 4099}}));

// Several of a CPU's tiles.
using LargeActivation = ActivationTest;

TEST_P(LargeActivation, MatchesReference) { ExpectMatchesReference(); }

INSTANTIATE_OP_TEST_FROM(LargeActivation, NameOf, Cases({{5, 7000}}));

// Values at which exponentials overflow or vanish.
using ActivationFarFromZero = ActivationTest;

TEST_P(ActivationFarFromZero, IsFlatOrStraight) {
  x_ = Rounded({-1e4F, -100.0F, 100.0F, 1e4F});
  const auto [y, of_sum, dx] = Compute();
  const bool is_flat = activation() == Activation::kTanh || activation() == Activation::kSigmoid;
  const double left = activation() == Activation::kTanh ? -1.0 : 0.0;
  const Vector expected_y = {left, left, is_flat ? 1.0 : 100.0, is_flat ? 1.0 : x_[3]};
  const Vector expected_dx = {0.0, 0.0, is_flat ? 0.0 : dy_[2], is_flat ? 0.0 : dy_[3]};
  EXPECT_THAT(y, CloseTo(expected_y, PrecisionOf(DType::kFloat32).underflow));
  EXPECT_THAT(dx, CloseTo(expected_dx, PrecisionOf(DType::kFloat32).underflow));
}

INSTANTIATE_OP_TEST_FROM(ActivationFarFromZero, NameOf, Cases({{1, 4}}, /*with_none=*/false));

TEST(ActivationRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<ActivationShape>({{.rows = 0}, {.features = kHuge}});
}

}  // namespace
}  // namespace stagecoach::kernels::activation_test
