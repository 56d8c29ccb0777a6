#include "kernels/ops/pooling.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
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

namespace stagecoach::kernels::pooling_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

Shape ShapeOfX(const PoolingShape& s) { return {s.planes, s.height, s.width}; }
Shape ShapeOfY(const PoolingShape& s) { return {s.planes, s.output_height(), s.output_width()}; }

struct Results {
  Tensor y, dx;
};
Results Pool(TestDevice& device, const PoolingShape& shape, const std::vector<float>& x,
             const std::vector<float>& dy) {
  const Results results{device.Result(ShapeOfY(shape)), device.Result(ShapeOfX(shape))};
  EXPECT_OK(device.Run([&](Stream& stream) -> absl::Status {
    const std::unique_ptr<PoolingOp> op = device.ops().Create(shape).value();
    const Tensor xs = device.Operand(ShapeOfX(shape), x);
    EXPECT_OK(op->Forward(stream, xs, results.y));
    return op->BackwardInput(stream, device.Operand(ShapeOfY(shape), dy),
                             shape.kind == Pooling::kMax ? xs : Tensor{}, results.dx,
                             device.Workspace(op->workspace_bytes()));
  }));
  return results;
}

class CpuPooling : public ::testing::TestWithParam<PoolingShape> {
 protected:
  const PoolingShape shape_ = GetParam();
  const std::vector<float> x_ = RandomNormal(ShapeOfX(shape_).elements(), 1);
  const std::vector<float> dy_ = RandomNormal(ShapeOfY(shape_).elements(), 2);
};

TEST_P(CpuPooling, MatchesReference) {
  TestDevice device;
  const auto [y, dx] = Pool(device, shape_, x_, dy_);
  const auto bounds = [&](const Vector& magnitudes) {
    std::vector<double> each;
    const int64_t terms = shape_.kernel_height * shape_.kernel_width + 2;
    for (const double sum : magnitudes) each.push_back(DotBound(terms, sum));
    return each;
  };
  const Vector x = ToDouble(x_), dy = ToDouble(dy_);
  EXPECT_THAT(TestDevice::Values(y),
              CloseTo(reference::PoolingForward(shape_, x),
                      bounds(Magnitudes(reference::PoolingForward(
                          shape_, shape_.kind == Pooling::kMax ? x : Magnitudes(x))))));
  EXPECT_THAT(TestDevice::Values(dx),
              CloseTo(reference::PoolingBackward(shape_, dy, x),
                      bounds(reference::PoolingBackward(shape_, Magnitudes(dy), x))));
}

TEST_P(CpuPooling, AnyNumberOfThreadsGivesTheSameBits) {
  TestDevice one, several(3);
  const Results expected = Pool(one, shape_, x_, dy_), actual = Pool(several, shape_, x_, dy_);
  EXPECT_EQ(BytesOf(actual.y), BytesOf(expected.y));
  EXPECT_EQ(BytesOf(actual.dx), BytesOf(expected.dx));
}

std::string CaseName(const ::testing::TestParamInfo<PoolingShape>& info) {
  const PoolingShape& s = info.param;
  return absl::StrCat(s.kind == Pooling::kMax ? "max" : "average", s.planes, "x", s.height, "x",
                      s.width, "_k", s.kernel_height, "x", s.kernel_width, "s", s.stride, "p",
                      s.padding);
}

std::vector<PoolingShape> Shapes() {
  std::vector<PoolingShape> shapes;
  for (const Pooling kind : {Pooling::kMax, Pooling::kAverage}) {
    shapes.insert(shapes.end(), {{kind},
                                 {kind, 3, 4, 6, 2, 2, 2},
                                 {kind, 40, 7, 7, 3, 3, 2, 1},
                                 {kind, 2, 5, 4, 2, 3, 1, 1},
                                 {kind, 17, 4, 5, 4, 5}});
  }
  return shapes;
}
INSTANTIATE_TEST_SUITE_P(Shapes, CpuPooling, ::testing::ValuesIn(Shapes()), CaseName);

TEST(CpuPoolingOfNan, PassesItOn) {
  TestDevice device;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Pooling kind : {Pooling::kMax, Pooling::kAverage}) {
    const PoolingShape shape{
        .kind = kind, .height = 2, .width = 4, .kernel_height = 2, .kernel_width = 2, .stride = 2};
    const Vector y = TestDevice::Values(Pool(device, shape, {1, 5, 2, 2, kNan, 7, 2, 2}, {1, 1}).y);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], 2);
  }
}

TEST(CpuPoolingOfEqualElements, GivesTheFirstTheGradient) {
  TestDevice device;
  const PoolingShape shape{.height = 2, .width = 2, .kernel_height = 2, .kernel_width = 2};
  EXPECT_EQ(TestDevice::Values(Pool(device, shape, {1, 5, 5, 5}, {3}).dx), (Vector{0, 3, 0, 0}));
}

TEST(CpuPoolingRefusal, IsAnInvalidArgument) {
  TestDevice device;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const PoolingShape& shape :
       {PoolingShape{.planes = 0}, PoolingShape{.height = kHuge}, PoolingShape{.kernel_width = 2},
        PoolingShape{.stride = 0}, PoolingShape{.padding = 1}, PoolingShape{.padding = -1}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::pooling_test
