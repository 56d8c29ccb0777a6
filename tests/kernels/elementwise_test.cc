#include "kernels/ops/elementwise.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::elementwise_test {
namespace {

using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;

class CpuElementwise : public ::testing::TestWithParam<int64_t> {
 protected:
  Tensor Add(const Tensor& a, const Tensor& b, const Tensor& y) {
    EXPECT_OK(device_.Run([&](Stream& stream) { return ops_.Add(stream, a, b, y); }));
    return y;
  }

  const Shape shape_{GetParam()};
  const std::vector<float> a_ = RandomNormal(GetParam(), 1);
  const std::vector<float> b_ = RandomNormal(GetParam(), 2);
  TestDevice device_{/*threads=*/2};
  ElementwiseOps& ops_ = device_.ops().elementwise();
};

TEST_P(CpuElementwise, AddMatchesReference) {
  const Tensor y =
      Add(device_.Operand(shape_, a_), device_.Operand(shape_, b_), device_.Result(shape_));
  const reference::Vector expected = reference::Add(ToDouble(a_), ToDouble(b_));
  reference::Vector bounds;
  for (double value : Magnitudes(expected)) bounds.push_back(Gamma(1) * value);
  EXPECT_THAT(TestDevice::Values(y), CloseTo(expected, bounds));
}

TEST_P(CpuElementwise, AddMayOverwriteEitherOperand) {
  const Tensor a = device_.Operand(shape_, a_), b = device_.Operand(shape_, b_);
  const Tensor expected = Add(a, b, device_.Result(shape_));
  const Tensor into_a = device_.Operand(shape_, a_), into_b = device_.Operand(shape_, b_);
  EXPECT_EQ(BytesOf(Add(into_a, b, into_a)), BytesOf(expected));
  EXPECT_EQ(BytesOf(Add(a, into_b, into_b)), BytesOf(expected));
}

TEST_P(CpuElementwise, CopyCopies) {
  const Tensor x = device_.Operand(shape_, a_), y = device_.Result(shape_);
  EXPECT_OK(device_.Run([&](Stream& stream) { return ops_.Copy(stream, x, y); }));
  EXPECT_EQ(BytesOf(y), BytesOf(x));
}

// In floats, so that the order matters; into each of the addends.
TEST_P(CpuElementwise, SumTreeAddsInABalancedTree) {
  for (const size_t count : {1, 2, 4, 8}) {
    std::vector<std::vector<float>> values;
    for (size_t i = 0; i < count; ++i) values.push_back(RandomNormal(GetParam(), 10 + i));
    std::vector<std::vector<float>> sums = values;
    for (size_t width = count / 2; width > 0; width /= 2) {
      for (size_t i = 0; i < width; ++i) {
        for (size_t k = 0; k < sums[i].size(); ++k) {
          sums[i][k] = sums[2 * i][k] + sums[2 * i + 1][k];
        }
      }
    }
    for (size_t into = 0; into < count; ++into) {
      std::vector<Tensor> addends;
      for (const std::vector<float>& own : values) addends.push_back(device_.Operand(shape_, own));
      const Tensor& y = addends[into];
      EXPECT_OK(device_.Run([&](Stream& stream) { return ops_.SumTree(stream, addends, y); }));
      EXPECT_EQ(TestDevice::Values(y), ToDouble(sums.front())) << into << " of " << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, CpuElementwise,
                         ::testing::Values(0, 1, 2, 15, 16, 17, 1000, 32768, 32769, 100003),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stagecoach::kernels::elementwise_test
