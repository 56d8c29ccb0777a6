#include "kernels/ops/activation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::activation_test {
namespace {

using ::stagecoach::testing::ActivationBound;
using ::stagecoach::testing::ActivationDerivativeBound;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::IsExact;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;

class CpuActivation : public ::testing::TestWithParam<Activation> {
 protected:
  struct Results {
    std::vector<double> y, dx;
  };
  // More elements than a tile has, some of them where activations are flat.
  CpuActivation() {
    for (size_t i = 0; i < x_.size(); i += 3) x_[i] *= 8.0F;
    x_[0] = 1e4F;
    x_[1] = -1e4F;
  }

  Results Compute(int threads, bool adds) {
    TestDevice device(threads);
    const Shape shape{7, std::ssize(x_) / 7};
    const Tensor x = device.Operand(shape, x_), y = device.Result(shape), dx = device.Result(shape);
    EXPECT_OK(device.Run([&](Stream& stream) -> absl::Status {
      const std::unique_ptr<ActivationOp> op =
          device.ops().Create(ActivationShape{shape.dim(0), shape.dim(1), GetParam()}).value();
      EXPECT_OK(op->Forward(stream, x, adds ? device.Operand(shape, a_) : Tensor{}, y));
      return op->BackwardInput(stream, device.Operand(shape, dy_), KeepsZ(GetParam()) ? x : y, dx);
    }));
    return {TestDevice::Values(y), TestDevice::Values(dx)};
  }

  std::vector<float> x_ = RandomNormal(70'000, 1);
  const std::vector<float> a_ = RandomNormal(70'000, 2), dy_ = RandomNormal(70'000, 3);
};

TEST_P(CpuActivation, MatchesReference) {
  const Results actual = Compute(1, /*adds=*/false);
  std::vector<double> y, y_bounds, dx, dx_bounds;
  for (size_t i = 0; i < x_.size(); ++i) {
    y.push_back(reference::Activate(GetParam(), x_[i]));
    y_bounds.push_back(ActivationBound(GetParam(), x_[i], 0.0) + 0x1p-125);
    dx.push_back(dy_[i] * reference::ActivationDerivative(GetParam(), x_[i]));
    // By a y that is itself computed.
    const double slope_bound =
        ActivationDerivativeBound(GetParam(), x_[i]) + (KeepsZ(GetParam()) ? 0.0 : 2 * y_bounds[i]);
    dx_bounds.push_back(
        IsExact(GetParam()) ? 0.0 : std::fabs(dy_[i]) * slope_bound + Gamma(1) * std::fabs(dx[i]));
  }
  EXPECT_THAT(actual.y, CloseTo(y, y_bounds));
  EXPECT_THAT(actual.dx, CloseTo(dx, dx_bounds));
}

TEST_P(CpuActivation, OfASumMatchesReference) {
  const std::vector<double> actual = Compute(1, /*adds=*/true).y;
  std::vector<double> y, bounds;
  for (size_t i = 0; i < x_.size(); ++i) {
    const double z = x_[i] + a_[i];
    y.push_back(reference::Activate(GetParam(), z));
    bounds.push_back(ActivationBound(GetParam(), z, 0.0) + 0x1p-125);
  }
  EXPECT_THAT(actual, CloseTo(y, bounds));
}

TEST_P(CpuActivation, PassesOnWhatIsNotANumber) {
  constexpr size_t kAt[] = {0, 21, 69'999};
  for (const size_t i : kAt) x_[i] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<double> y = Compute(1, /*adds=*/false).y;
  for (const size_t i : kAt) EXPECT_TRUE(std::isnan(y[i])) << i;
  EXPECT_EQ(std::count_if(y.begin(), y.end(), [](double value) { return std::isnan(value); }), 3);
}

TEST_P(CpuActivation, HasTheSameBitsForAnyNumberOfThreads) {
  const Results one = Compute(1, /*adds=*/true), three = Compute(3, /*adds=*/true);
  EXPECT_EQ(three.y, one.y);
  EXPECT_EQ(three.dx, one.dx);
}

INSTANTIATE_TEST_SUITE_P(Activations, CpuActivation, ::testing::ValuesIn(kAllActivations),
                         [](const auto& param_info) { return ActivationName(param_info.param); });

TEST(CpuActivationRefusal, IsAnInvalidArgument) {
  TestDevice device;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const ActivationShape& shape :
       {ActivationShape{.rows = 0}, ActivationShape{.features = kHuge}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::activation_test
