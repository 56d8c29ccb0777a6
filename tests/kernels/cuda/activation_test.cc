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

namespace stagecoach::kernels::activation_test {
namespace {

using reference::Vector;
using testing::ActivationBound;
using testing::ActivationDerivativeBound;
using testing::CloseTo;
using testing::ElementTypeOf;
using testing::EmulatedGpu;
using testing::Gamma;
using testing::InEveryOrder;
using testing::IsExact;
using testing::kActivationTypes;
using testing::NameOf;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::StoredBound;
using testing::ToDouble;

using Parameter = std::tuple<DType, int64_t>;
class CudaActivation : public ::testing::TestWithParam<Parameter> {
 protected:
  // Also values where activations are flat.
  CudaActivation() : z_(RandomNormal(elements_, 1)), dy_(RandomNormal(elements_, 2)) {
    for (size_t i = 0; i < z_.size(); i += 3) z_[i] *= 8.0F;
    for (size_t i = 1; i < z_.size(); i += 5) z_[i] = 0.0F;
    z_ = RoundedTo(type_, z_);
    dy_ = RoundedTo(type_, dy_);
  }

  // What the derivative is known by.
  std::vector<float> Known(Activation activation) const {
    if (KeepsZ(activation)) return z_;
    std::vector<float> y;
    for (const float z : z_) y.push_back(static_cast<float>(reference::Activate(activation, z)));
    return RoundedTo(type_, y);
  }

  Vector Gradient(Activation activation, bool in_place = false) {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor dy = gpu.Operand(type_, dy_), known = gpu.Operand(type_, Known(activation));
      const Tensor dz = in_place ? known : gpu.Result(type_, elements_);
      EXPECT_EQ(LaunchActivationBackward(
                    gpu.stream(), ElementTypeOf(type_), activation,
                    {.columns = elements_, .dy = dy.data, .known = known.data, .dz = dz.data}),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(dz)};
    })[0];
  }

  const DType type_ = std::get<0>(GetParam());
  const int64_t elements_ = std::get<1>(GetParam());
  std::vector<float> z_, dy_;
};

TEST_P(CudaActivation, GradientMatchesReference) {
  for (const Activation activation : kAllActivations) {
    Vector expected, bounds;
    for (size_t i = 0; i < z_.size(); ++i) {
      const double dy = dy_[i], z = z_[i];
      expected.push_back(dy * reference::ActivationDerivative(activation, z));
      const double bound = std::fabs(dy) * ActivationDerivativeBound(activation, z, type_) +
                           Gamma(1) * std::fabs(expected[i]);
      bounds.push_back(IsExact(activation) ? 0.0 : StoredBound(expected.back(), bound, type_));
    }
    EXPECT_THAT(Gradient(activation), CloseTo(expected, bounds)) << ActivationName(activation);
  }
}

TEST_P(CudaActivation, GradientMayOverwriteItsOperand) {
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    EXPECT_EQ(Gradient(activation, /*in_place=*/true), Gradient(activation));
  }
}

TEST_P(CudaActivation, OfASumMatchesReference) {
  for (const Activation activation : kAllActivations) {
    const Vector actual = InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor a = gpu.Operand(type_, z_), b = gpu.Operand(type_, dy_);
      const Tensor y = gpu.Result(type_, elements_);
      EXPECT_EQ(LaunchActivationOfSum(gpu.stream(), ElementTypeOf(type_), activation, elements_,
                                      a.data, b.data, y.data),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(y)};
    })[0];
    Vector expected, bounds;
    for (size_t i = 0; i < z_.size(); ++i) {
      const double sum = static_cast<double>(z_[i]) + dy_[i];
      expected.push_back(reference::Activate(activation, sum));
      const double bound = ActivationBound(activation, sum, Gamma(1) * std::fabs(sum));
      bounds.push_back(StoredBound(expected.back(), bound, type_));
    }
    EXPECT_THAT(actual, CloseTo(expected, bounds)) << ActivationName(activation);
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, CudaActivation,
                         ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                                            ::testing::Values(1, 9, 4099, 20000)),
                         [](const ::testing::TestParamInfo<Parameter>& param_info) {
                           return absl::StrCat(NameOf(std::get<0>(param_info.param)), "_",
                                               std::get<1>(param_info.param));
                         });

// Rows and columns; fewer columns than threads and more, whole vectors and not; several blocks.
using BiasParameter = std::tuple<DType, std::pair<int64_t, int64_t>>;
class CudaBias : public ::testing::TestWithParam<BiasParameter> {
 protected:
  // Also values where activations are flat, and where ReLU begins.
  CudaBias() : product_(RandomNormal(rows_ * columns_, 1)), bias_(RandomNormal(columns_, 2)) {
    for (size_t i = 0; i < product_.size(); i += 3) product_[i] *= 8.0F;
    product_ = RoundedTo(type_, product_);
    bias_ = RoundedTo(type_, bias_);
    for (size_t i = 1; i < product_.size(); i += 5) product_[i] = -BiasOf(i);
    for (size_t i = 0; i < product_.size(); ++i) z_.push_back(product_[i] + BiasOf(i));
  }
  float BiasOf(size_t i) const { return bias_[i % bias_.size()]; }

  // What is to be in z (if it is asked for) and y. `offset`, in elements, is of each address.
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
  // z_ and what is made of it as float32, rounded to the type.
  Vector Stored(const std::vector<float>& values) const {
    return ToDouble(RoundedTo(type_, values));
  }

  const DType type_ = std::get<0>(GetParam());
  const int64_t rows_ = std::get<1>(GetParam()).first;
  const int64_t columns_ = std::get<1>(GetParam()).second;
  std::vector<float> product_, bias_, z_;
};

TEST_P(CudaBias, IsAddedToEveryRow) {
  EXPECT_EQ(Compute(Activation::kNone, /*want_z=*/false), (std::vector<Vector>{Stored(z_)}));
}

TEST_P(CudaBias, ReluFollowsExactly) {
  std::vector<float> y;
  for (const float z : z_) y.push_back(std::max(0.0F, z));
  EXPECT_EQ(Compute(Activation::kRelu, /*want_z=*/false), (std::vector<Vector>{Stored(y)}));
}

TEST_P(CudaBias, ActivationMatchesReferenceAndKeepsWhatItIsOf) {
  for (const Activation activation : kAllActivations) {
    SCOPED_TRACE(ActivationName(activation));
    const std::vector<Vector> actual = Compute(activation, /*want_z=*/true);
    Vector expected, bounds;
    for (const double z : z_) {
      expected.push_back(reference::Activate(activation, z));
      bounds.push_back(StoredBound(expected.back(), ActivationBound(activation, z, 0.0), type_));
    }
    EXPECT_THAT(actual[0], CloseTo(expected, bounds));
    EXPECT_EQ(actual[1], Stored(z_));
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

// Where exponentials overflow or vanish.
TEST(CudaActivationFarFromZero, IsFlatOrStraight) {
  struct Case {
    Activation activation;
    Vector y, dz;
  };
  const Vector flat = {0.0, 0.0, 0.0, 0.0}, step = {0.0, 0.0, 1.0, 1.0};
  for (const Case& expected : {Case{Activation::kGelu, {0.0, 0.0, 100.0, 1e4}, step},
                               Case{Activation::kGeluExact, {0.0, 0.0, 100.0, 1e4}, step},
                               Case{Activation::kTanh, {-1.0, -1.0, 1.0, 1.0}, flat},
                               Case{Activation::kSigmoid, step, flat}}) {
    SCOPED_TRACE(ActivationName(expected.activation));
    EmulatedGpu gpu;
    const Tensor z = gpu.Operand(DType::kFloat32, {-1e4F, -100.0F, 100.0F, 1e4F});
    const Tensor ones = gpu.Operand(DType::kFloat32, {1.0F, 1.0F, 1.0F, 1.0F});
    const Tensor y = gpu.Result(DType::kFloat32, 4), dz = gpu.Result(DType::kFloat32, 4);
    ASSERT_EQ(LaunchBias(gpu.stream(), ElementType::kFloat32, expected.activation,
                         {.rows = 1, .columns = 4, .product = z.data, .y = y.data}),
              cudaSuccess);
    const void* const known = KeepsZ(expected.activation) ? z.data : y.data;
    ASSERT_EQ(
        LaunchActivationBackward(gpu.stream(), ElementType::kFloat32, expected.activation,
                                 {.columns = 4, .dy = ones.data, .known = known, .dz = dz.data}),
        cudaSuccess);
    EXPECT_EQ(gpu.Values(y), expected.y);
    EXPECT_EQ(gpu.Values(dz), expected.dz);
  }
}

TEST(CudaReport, WritesTheNumber) {
  EmulatedGpu gpu;
  const Tensor where = gpu.Integers({3, 4});
  ASSERT_EQ(LaunchReport(gpu.stream(), where.i32(), 17), cudaSuccess);
  EXPECT_EQ(gpu.Values(where), (Vector{17, 4}));
}

}  // namespace
}  // namespace stagecoach::kernels::activation_test
