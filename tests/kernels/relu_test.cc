#include "kernels/ops/relu.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::relu_test {
namespace {

using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

// More elements than a tile has. One addition is all that is rounded.
TEST(CpuRelu, IsExactForAnyNumberOfThreads) {
  constexpr int64_t kElements = 70'000;
  const std::vector<float> x = RandomNormal(kElements, 1), a = RandomNormal(kElements, 2);
  const std::vector<float> dy = RandomNormal(kElements, 3);
  for (const int threads : {1, 3}) {
    for (const bool adds : {false, true}) {
      TestDevice device(threads);
      const Shape shape{7, kElements / 7};
      const Tensor y = device.Result(shape), dx = device.Result(shape);
      ASSERT_OK(device.Run([&](Stream& stream) -> absl::Status {
        const std::unique_ptr<ReluOp> op =
            device.ops().Create(ReluShape{shape.dim(0), shape.dim(1)}).value();
        EXPECT_OK(op->Forward(stream, device.Operand(shape, x),
                              adds ? device.Operand(shape, a) : Tensor{}, y));
        return op->BackwardInput(stream, device.Operand(shape, dy), y, dx);
      }));
      std::vector<float> expected_y, expected_dx;
      for (size_t i = 0; i < x.size(); ++i) {
        const float sum = adds ? x[i] + a[i] : x[i];
        expected_y.push_back(std::max(sum, 0.0F));
        expected_dx.push_back(sum > 0.0F ? dy[i] : 0.0F);
      }
      EXPECT_EQ(TestDevice::Values(y), ToDouble(expected_y));
      EXPECT_EQ(TestDevice::Values(dx), ToDouble(expected_dx));
    }
  }
}

TEST(CpuReluRefusal, IsAnInvalidArgument) {
  TestDevice device;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const ReluShape& shape : {ReluShape{.rows = 0}, ReluShape{.features = kHuge}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace stagecoach::kernels::relu_test
