#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/linear.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/thread_count.h"

// A separate program: other tests' libraries and devices would be counted too.
namespace stagecoach::kernels {
namespace {

using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ThreadsOnceReaped;

// Large enough that a library would share the products among threads.
void RunProducts(TestDevice& device) {
  const LinearShape shape{.rows = 64, .inputs = 768, .outputs = 768};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<LinearOp> op, device.ops().Create(shape));
  const std::vector<float> values(768 * 768, 0.5F);
  const auto ones = absl::MakeConstSpan(values);
  const Tensor x = device.Operand(Shape{64, 768}, ones.first(64 * 768));
  const Tensor w = device.Operand(Shape{768, 768}, ones);
  const Tensor b = device.Operand(Shape{768}, ones.first(768));
  const Tensor y = device.Result(Shape{64, 768}), dx = device.Result(Shape{64, 768});
  const Tensor dw = device.Result(Shape{768, 768}), db = device.Result(Shape{768});
  std::byte* const workspace = device.Workspace(op->workspace_bytes());
  ASSERT_OK(
      device.Run([&](Stream& stream) { return op->Forward(stream, x, w, b, {}, y, workspace); }));
  ASSERT_OK(device.Run(
      [&](Stream& stream) { return op->BackwardInput(stream, y, y, {}, w, {}, dx, workspace); }));
  ASSERT_OK(device.Run([&](Stream& stream) {
    return op->BackwardWeight(stream, x, y, dw, db, /*accumulate=*/false, workspace);
  }));
}

class CpuDeviceThreads : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { before_ = testing::ThreadsOfAnIdleProcess(); }

  static int before_;
};

int CpuDeviceThreads::before_ = 0;

TEST_P(CpuDeviceThreads, ProductsRunOnTheDevicesThreadsAlone) {
  TestDevice device(/*threads=*/GetParam());
  RunProducts(device);
  const int expected = before_ + GetParam();
  EXPECT_EQ(ThreadsOnceReaped(expected), expected);
}

TEST_P(CpuDeviceThreads, EndWithTheDevice) {
  {
    TestDevice device(/*threads=*/GetParam());
    RunProducts(device);
  }
  EXPECT_EQ(ThreadsOnceReaped(before_), before_);
}

INSTANTIATE_TEST_SUITE_P(Threads, CpuDeviceThreads, ::testing::Values(1, 2, 3, 5),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stagecoach::kernels
