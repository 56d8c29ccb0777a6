#include "kernels/ops/swiglu.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/swiglu_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::swiglu_test {
namespace {

using reference::Vector;
using testing::CloseTo;
using testing::ElementTypeOf;
using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::kActivationTypes;
using testing::NameOf;
using testing::RandomNormal;
using testing::RandomUniform;
using testing::RoundedTo;
using testing::StoredBound;
using testing::SwiGluBackwardBounds;
using testing::SwiGluForwardBounds;
using testing::ToDouble;

using Parameter = std::tuple<DType, SwiGluShape>;
class CudaSwiGlu : public ::testing::TestWithParam<Parameter> {
 protected:
  Vector Forward(int64_t offset = 0) const {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor x = gpu.Operand(type_, x_, offset);
      const Tensor y = gpu.Result(type_, elements_, offset);
      EXPECT_EQ(LaunchSwiGluForward(
                    gpu.stream(), ElementTypeOf(type_),
                    {.rows = shape_.rows, .features = shape_.features, .x = x.data, .y = y.data}),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(y)};
    })[0];
  }
  Vector Backward(int64_t offset = 0) const {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor x = gpu.Operand(type_, x_, offset), dy = gpu.Operand(type_, dy_, offset);
      const Tensor dx = gpu.Result(type_, 2 * elements_, offset);
      EXPECT_EQ(LaunchSwiGluBackward(gpu.stream(), ElementTypeOf(type_),
                                     {.rows = shape_.rows,
                                      .features = shape_.features,
                                      .x = x.data,
                                      .dy = dy.data,
                                      .dx = dx.data}),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(dx)};
    })[0];
  }
  Vector Stored(Vector bounds, const Vector& expected) const {
    for (size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = StoredBound(expected[i], bounds[i], type_);
    }
    return bounds;
  }

  const DType type_ = std::get<0>(GetParam());
  const SwiGluShape shape_ = std::get<1>(GetParam());
  const int64_t elements_ = shape_.rows * shape_.features;
  const std::vector<float> x_ = RoundedTo(type_, RandomUniform(-20.0F, 20.0F, 2 * elements_, 1));
  const std::vector<float> dy_ = RoundedTo(type_, RandomNormal(elements_, 2));
};

TEST_P(CudaSwiGlu, ForwardMatchesReference) {
  const Vector x = ToDouble(x_);
  const Vector expected = reference::SwiGluForward(shape_, x);
  EXPECT_THAT(Forward(), CloseTo(expected, Stored(SwiGluForwardBounds(shape_, x), expected)));
}

TEST_P(CudaSwiGlu, BackwardMatchesReference) {
  const Vector x = ToDouble(x_), dy = ToDouble(dy_);
  const Vector expected = reference::SwiGluBackward(shape_, dy, x);
  EXPECT_THAT(Backward(), CloseTo(expected, Stored(SwiGluBackwardBounds(shape_, dy, x), expected)));
}

TEST_P(CudaSwiGlu, IsTheSameAtAnyAddress) {
  EXPECT_EQ(Forward(/*offset=*/1), Forward());
  EXPECT_EQ(Backward(/*offset=*/1), Backward());
}

std::string NameOfCase(const ::testing::TestParamInfo<Parameter>& info) {
  const auto& [type, shape] = info.param;
  return absl::StrCat(NameOf(type), "_", shape.rows, "x", shape.features);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaSwiGlu,
    ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                       ::testing::Values(SwiGluShape{1, 1}, SwiGluShape{3, 7}, SwiGluShape{5, 24},
                                         SwiGluShape{2, 2048}, SwiGluShape{300, 9})),
    NameOfCase);

// Where the exponential overflows or vanishes.
TEST(CudaSwiGluGate, IsOpenOrShutFarFromZero) {
  EmulatedGpu gpu;
  const Tensor x = gpu.Operand(DType::kFloat32, {-1e4F, 1e4F, 3.0F, 2.0F});
  const Tensor y = gpu.Result(DType::kFloat32, 2);
  ASSERT_EQ(LaunchSwiGluForward(gpu.stream(), ElementType::kFloat32,
                                {.rows = 1, .features = 2, .x = x.data, .y = y.data}),
            cudaSuccess);
  EXPECT_EQ(gpu.Values(y), (Vector{0.0, 2e4}));
}

}  // namespace
}  // namespace stagecoach::kernels::swiglu_test
