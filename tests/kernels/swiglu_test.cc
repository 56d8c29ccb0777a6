#include "kernels/ops/swiglu.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
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

namespace stagecoach::kernels::swiglu_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RandomUniform;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::SwiGluBackwardBounds;
using ::stagecoach::testing::SwiGluForwardBounds;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

// Operands on a device. Results hold not-a-number before a call.
class OnDevice {
 public:
  OnDevice(const SwiGluShape& shape, std::vector<float> x, int threads = 1)
      : shape_(shape), x_(std::move(x)), device_(threads) {
    auto op = device_.ops().Create(shape);
    EXPECT_OK(op);
    op_ = *std::move(op);
  }

  Tensor Forward() {
    const Tensor y = device_.Result(Shape{shape_.rows, shape_.features});
    EXPECT_OK(device_.Run(
        [&](Stream& stream) { return op_->Forward(stream, device_.Operand(pairs(), x_), y); }));
    return y;
  }

  Tensor Backward(const std::vector<float>& dy) {
    const Tensor dx = device_.Result(pairs());
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->BackwardInput(stream, device_.Operand(Shape{shape_.rows, shape_.features}, dy),
                                device_.Operand(pairs(), x_), dx);
    }));
    return dx;
  }

 private:
  Shape pairs() const { return {shape_.rows, 2 * shape_.features}; }

  const SwiGluShape shape_;
  const std::vector<float> x_;
  TestDevice device_;
  std::unique_ptr<SwiGluOp> op_;
};

class CpuSwiGlu : public ::testing::TestWithParam<SwiGluShape> {
 protected:
  const SwiGluShape shape_ = GetParam();
  const std::vector<float> x_ = RandomUniform(-20.0F, 20.0F, shape_.rows* shape_.features * 2, 1);
  const std::vector<float> dy_ = RandomNormal(shape_.rows * shape_.features, 2);
};

TEST_P(CpuSwiGlu, ForwardMatchesReference) {
  const Vector x = ToDouble(x_);
  OnDevice device(shape_, x_);
  EXPECT_THAT(TestDevice::Values(device.Forward()),
              CloseTo(reference::SwiGluForward(shape_, x), SwiGluForwardBounds(shape_, x)));
}

TEST_P(CpuSwiGlu, BackwardMatchesReference) {
  const Vector x = ToDouble(x_), dy = ToDouble(dy_);
  OnDevice device(shape_, x_);
  EXPECT_THAT(
      TestDevice::Values(device.Backward(dy_)),
      CloseTo(reference::SwiGluBackward(shape_, dy, x), SwiGluBackwardBounds(shape_, dy, x)));
}

TEST_P(CpuSwiGlu, AnyNumberOfThreadsGivesTheSameBits) {
  OnDevice one(shape_, x_), several(shape_, x_, 3);
  EXPECT_EQ(BytesOf(several.Forward()), BytesOf(one.Forward()));
  EXPECT_EQ(BytesOf(several.Backward(dy_)), BytesOf(one.Backward(dy_)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuSwiGlu,
                         ::testing::Values(SwiGluShape{1, 1}, SwiGluShape{3, 7},
                                           SwiGluShape{17, 33}, SwiGluShape{50, 700}),
                         [](const auto& param_info) {
                           return absl::StrCat(param_info.param.rows, "x",
                                               param_info.param.features);
                         });

// Where the exponential overflows or vanishes.
TEST(CpuSwiGluGate, IsOpenOrShutFarFromZero) {
  OnDevice device({.rows = 1, .features = 2}, {-1e4F, 1e4F, 3.0F, 2.0F});
  EXPECT_EQ(TestDevice::Values(device.Forward()), (Vector{0.0, 2e4}));
  EXPECT_EQ(TestDevice::Values(device.Backward({1.0F, 1.0F})), (Vector{0.0, 2.0, 0.0, 1e4}));
}

TEST(CpuSwiGluRefusal, IsAnInvalidArgument) {
  TestDevice device;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const SwiGluShape& shape : {SwiGluShape{.rows = 0}, SwiGluShape{.features = -1},
                                   SwiGluShape{.rows = kHuge}, SwiGluShape{.features = kHuge}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::swiglu_test
