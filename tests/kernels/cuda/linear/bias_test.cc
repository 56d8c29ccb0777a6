#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/activation_kernels.h"
#include "kernels/cuda/runtime/progress_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::bias_test {
namespace {

using reference::Vector;
using testing::ActivationBound;
using testing::CloseTo;
using testing::ElementTypeOf;
using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::IsExact;
using testing::kActivationTypes;
using testing::NameOf;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::StoredBound;
using testing::ToDouble;

// The kernel that follows a product without an epilogue. Linear layers reach it only with the
// shapes and places that their products allow; it accepts any.
//
// Rows and columns; fewer columns than threads and more, whole vectors and not; several blocks.
using BiasParameter = std::tuple<DType, std::pair<int64_t, int64_t>>;
class CudaBias : public ::testing::TestWithParam<BiasParameter> {
 protected:
  // The values include some where activations are flat, and where ReLU begins.
  CudaBias() : product_(RandomNormal(rows_ * columns_, 1)), bias_(RandomNormal(columns_, 2)) {
    for (size_t i = 0; i < product_.size(); i += 3) product_[i] *= 8.0F;
    product_ = RoundedTo(type_, product_);
    bias_ = RoundedTo(type_, bias_);
    for (size_t i = 1; i < product_.size(); i += 5) product_[i] = -BiasOf(i);
    for (size_t i = 0; i < product_.size(); ++i) z_.push_back(product_[i] + BiasOf(i));
  }
  float BiasOf(size_t i) const { return bias_[i % bias_.size()]; }

  // Returns the expected z (if requested) and y. `offset`, in elements, is added to each address.
  std::vector<Vector> Compute(Activation activation, bool want_z, int64_t offset = 0) const {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const int64_t elements = rows_ * columns_;
      const Tensor product = gpu.Operand(type_, product_, offset);
      const Tensor bias = gpu.Operand(type_, bias_, offset);
      const Tensor z = gpu.Result(type_, elements, offset);
      const Tensor y = gpu.Result(type_, elements, offset);
      EXPECT_EQ(LaunchBias(gpu.stream(), ElementTypeOf(type_), activation,
                           {.rows = rows_,
                            .columns = columns_,
                            .product = product.data,
                            .bias = bias.data,
                            .z = want_z ? z.data : nullptr,
                            .y = y.data}),
                cudaSuccess);
      std::vector<Vector> results = {gpu.Values(y)};
      if (want_z) results.push_back(gpu.Values(z));
      return results;
    });
  }
  // Returns z_ and its float32 results, rounded to the type.
  Vector Stored(const std::vector<float>& values) const {
    return ToDouble(RoundedTo(type_, values));
  }

  const DType type_ = std::get<0>(GetParam());
  const int64_t rows_ = std::get<1>(GetParam()).first;
  const int64_t columns_ = std::get<1>(GetParam()).second;
  std::vector<float> product_, bias_, z_;
};

TEST_P(CudaBias, MatchesReferenceAndKeepsWhatTheActivationIsOf) {
  for (const Activation activation : kAllActivations) {
    SCOPED_TRACE(ActivationName(activation));
    const std::vector<Vector> actual = Compute(activation, /*want_z=*/true);
    Vector expected, bounds;
    for (const double z : z_) {
      expected.push_back(reference::Activate(activation, z));
      bounds.push_back(StoredBound(expected.back(), ActivationBound(activation, z, 0.0), type_));
    }
    EXPECT_THAT(actual[0], CloseTo(expected, bounds));
    if (IsExact(activation)) {
      EXPECT_EQ(actual[0], Stored({expected.begin(), expected.end()}));
    }
    EXPECT_EQ(actual[1], Stored(z_));
    EXPECT_EQ(Compute(activation, /*want_z=*/false), std::vector<Vector>{actual[0]});
  }
}

TEST_P(CudaBias, MayBeMissing) {
  EmulatedGpu gpu;
  const Tensor product = gpu.Operand(type_, product_);
  const Tensor y = gpu.Result(type_, rows_ * columns_);
  ASSERT_EQ(LaunchBias(gpu.stream(), ElementTypeOf(type_), Activation::kRelu,
                       {.rows = rows_, .columns = columns_, .product = product.data, .y = y.data}),
            cudaSuccess);
  Vector expected = ToDouble(product_);
  for (double& value : expected) value = std::max(0.0, value);
  EXPECT_EQ(gpu.Values(y), expected);
}

TEST_P(CudaBias, IsTheSameAtAnyAddress) {
  EXPECT_EQ(Compute(Activation::kGelu, /*want_z=*/true, /*offset=*/1),
            Compute(Activation::kGelu, /*want_z=*/true));
}

TEST_P(CudaBias, MayOverwriteTheProduct) {
  EmulatedGpu gpu;
  const Tensor y = gpu.Operand(type_, product_), bias = gpu.Operand(type_, bias_);
  ASSERT_EQ(
      LaunchBias(
          gpu.stream(), ElementTypeOf(type_), Activation::kNone,
          {.rows = rows_, .columns = columns_, .product = y.data, .bias = bias.data, .y = y.data}),
      cudaSuccess);
  EXPECT_EQ(gpu.Values(y), Stored(z_));
}

std::string BiasName(const ::testing::TestParamInfo<BiasParameter>& info) {
  const auto& [type, extents] = info.param;
  return absl::StrCat(NameOf(type), "_", extents.first, "x", extents.second);
}

using Extents = std::pair<int64_t, int64_t>;
INSTANTIATE_TEST_SUITE_P(
    Extents, CudaBias,
    ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                       ::testing::Values(Extents{1, 1}, Extents{1, 1000}, Extents{1000, 1},
                                         Extents{7, 3}, Extents{33, 10}, Extents{5, 24},
                                         Extents{3, 2048}, Extents{4, 4099}, Extents{300, 32})),
    BiasName);

TEST(CudaReport, WritesTheNumber) {
  EmulatedGpu gpu;
  const Tensor where = gpu.Integers({3, 4});
  ASSERT_EQ(LaunchReport(gpu.stream(), where.i32(), 17), cudaSuccess);
  EXPECT_EQ(gpu.Values(where), (Vector{17, 4}));
}

}  // namespace
}  // namespace stagecoach::kernels::bias_test
