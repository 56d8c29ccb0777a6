#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/layer_norm_kernels.h"
#include "kernels/cuda/ops/linear/few_rows_kernels.h"
#include "kernels/ops/linear.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::few_rows_test {
namespace {

using reference::Vector;
using testing::ActivationBound;
using testing::CloseTo;
using testing::DotBound;
using testing::EmulatedGpu;
using testing::InEveryOrder;
using testing::IsExact;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::StoredBound;
using testing::ToDouble;

constexpr DType kType = DType::kBfloat16;

struct Case {
  LinearShape shape;
  size_t tile;
};

class FewRows : public ::testing::TestWithParam<Case> {
 protected:
  const LinearShape& shape() const { return GetParam().shape; }

  // Returns z and y of the first `rows` rows; rows beyond them are NaN.
  std::vector<Vector> Forward(int64_t rows, bool loads_weights_early = false) const {
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const std::vector<float> some(x_.begin(), x_.begin() + rows * shape().inputs);
      const Tensor x = gpu.Operand(kType, some), w = gpu.Operand(kType, w_);
      const Tensor bias = gpu.Operand(kType, bias_);
      const Tensor z = gpu.Result(kType, rows * shape().outputs);
      const Tensor y = gpu.Result(kType, rows * shape().outputs);
      const FewRowsArguments arguments = {.rows = rows,
                                          .inputs = shape().inputs,
                                          .outputs = shape().outputs,
                                          .x = x.data,
                                          .w = w.data,
                                          .bias = shape().has_bias ? bias.data : nullptr,
                                          .z = KeepsZ(shape().activation) ? z.data : nullptr,
                                          .y = y.data,
                                          .loads_weights_early = loads_weights_early};
      EXPECT_TRUE(FitsFewRows(ElementType::kBfloat16, arguments));
      EXPECT_EQ(FewRowsTiles()[GetParam().tile].launch(gpu.stream(), shape().activation, arguments),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(z), gpu.Values(y)};
    });
  }

  const std::vector<float> x_ = RoundedTo(kType, RandomNormal(shape().rows* shape().inputs, 1));
  const std::vector<float> w_ = RoundedTo(kType, RandomNormal(shape().inputs* shape().outputs, 2));
  const std::vector<float> bias_ = RoundedTo(kType, RandomNormal(shape().outputs, 3));
};

TEST_P(FewRows, MatchReference) {
  const Vector bias = shape().has_bias ? ToDouble(bias_) : Vector();
  const auto exact = reference::LinearForward(shape(), ToDouble(x_), ToDouble(w_), bias);
  const auto magnitudes = [](Vector values) {
    for (double& value : values) value = std::abs(value);
    return values;
  };
  LinearShape plain = shape();
  plain.activation = Activation::kNone;
  const Vector sum_abs = reference::LinearForward(plain, magnitudes(ToDouble(x_)),
                                                  magnitudes(ToDouble(w_)), magnitudes(bias))
                             .z;
  const Activation activation = shape().activation;
  Vector z_bound, y_bound;
  for (size_t i = 0; i < sum_abs.size(); ++i) {
    const double bound = DotBound(shape().inputs + 1, sum_abs[i]), z = exact.z[i];
    z_bound.push_back(StoredBound(z, bound, kType));
    y_bound.push_back(IsExact(activation)
                          ? z_bound[i]
                          : StoredBound(exact.y[i], ActivationBound(activation, z, bound), kType));
  }
  const std::vector<Vector> results = Forward(shape().rows);
  EXPECT_THAT(results[1], CloseTo(exact.y, y_bound));
  if (!KeepsZ(activation)) return;
  EXPECT_THAT(results[0], CloseTo(exact.z, z_bound));
}

TEST_P(FewRows, HaveTheSameBitsIfWeightsAreLoadedEarly) {
  EXPECT_EQ(Forward(shape().rows, true)[1], Forward(shape().rows, false)[1]);
}

TEST_P(FewRows, HaveTheBitsOfFewer) {
  const Vector all = Forward(shape().rows)[1];
  const Vector one = Forward(1)[1];
  EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin()));
}

// What a product is asked to do besides.
struct Neighbors {
  bool has_norm = false, centers = false, has_addend = false, has_relu = false;
};

// A product with neighbors, in one launch or in one for the norm and one for the product, followed
// by the rest on the host.
class FewRowsWithNeighbors : public FewRows {
 protected:
  Vector AtOnce(const Neighbors& neighbors, bool loads_weights_early) const {
    return Run(neighbors, loads_weights_early, /*apart=*/false);
  }
  Vector Apart(const Neighbors& neighbors) const {
    Vector y = Run({neighbors.has_norm, neighbors.centers}, false, /*apart=*/true);
    for (size_t i = 0; i < y.size(); ++i) {
      if (neighbors.has_addend) {
        const float sum = static_cast<float>(y[i]) + addend_[i];
        y[i] = RoundedTo(kType, std::vector<float>{sum})[0];
      }
      if (neighbors.has_relu) y[i] = std::max(y[i], 0.0);
    }
    return y;
  }

 private:
  Vector Run(const Neighbors& neighbors, bool loads_weights_early, bool apart) const {
    const int64_t rows = shape().rows, inputs = shape().inputs;
    return InEveryOrder([&](EmulatedGpu& gpu) {
      const Tensor x = gpu.Operand(kType, x_), w = gpu.Operand(kType, w_);
      const Tensor gamma = gpu.Operand(kType, gamma_), beta = gpu.Operand(kType, beta_);
      const Tensor bias = gpu.Operand(kType, bias_), addend = gpu.Operand(kType, addend_);
      const Tensor z = gpu.Result(kType, rows * shape().outputs);
      const Tensor y = gpu.Result(kType, rows * shape().outputs);
      FewRowsArguments arguments = {.rows = rows,
                                    .inputs = inputs,
                                    .outputs = shape().outputs,
                                    .x = x.data,
                                    .w = w.data,
                                    .bias = shape().has_bias ? bias.data : nullptr,
                                    .z = KeepsZ(shape().activation) ? z.data : nullptr,
                                    .y = y.data,
                                    .addend = neighbors.has_addend ? addend.data : nullptr,
                                    .has_relu = neighbors.has_relu,
                                    .loads_weights_early = loads_weights_early};
      constexpr float kEpsilon = 1e-3F;
      const void* const beta_data = neighbors.centers ? beta.data : nullptr;
      if (neighbors.has_norm && apart) {
        const Tensor narrow = gpu.Result(kType, rows * inputs);
        const Tensor statistics = gpu.Result(DType::kFloat32, 2 * rows);
        EXPECT_EQ(LaunchLayerNormForward(gpu.stream(), ElementType::kBfloat16,
                                         {.rows = rows,
                                          .features = inputs,
                                          .epsilon = kEpsilon,
                                          .centers = neighbors.centers,
                                          .x = x.data,
                                          .gamma = gamma.data,
                                          .beta = beta_data,
                                          .statistics = statistics.f32(),
                                          .y = narrow.data}),
                  cudaSuccess);
        arguments.x = narrow.data;
      } else if (neighbors.has_norm) {
        arguments.norm = {gamma.data, beta_data, kEpsilon, neighbors.centers};
      }
      EXPECT_EQ(FewRowsTiles()[GetParam().tile].launch(gpu.stream(), shape().activation, arguments),
                cudaSuccess);
      return std::vector<Vector>{gpu.Values(y)};
    })[0];
  }

  const std::vector<float> gamma_ = RoundedTo(kType, RandomNormal(shape().inputs, 4));
  const std::vector<float> beta_ = RoundedTo(kType, RandomNormal(shape().inputs, 5));
  const std::vector<float> addend_ =
      RoundedTo(kType, RandomNormal(shape().rows* shape().outputs, 6));
};

TEST_P(FewRowsWithNeighbors, HaveTheBitsOfTheOperationsApart) {
  for (const Neighbors& neighbors :
       {Neighbors{.has_norm = true, .centers = true}, Neighbors{.has_norm = true},
        Neighbors{.has_addend = true}, Neighbors{.has_relu = true},
        Neighbors{.has_norm = true, .centers = true, .has_addend = true, .has_relu = true}}) {
    SCOPED_TRACE(absl::StrCat("norm ", neighbors.has_norm, ", centers ", neighbors.centers,
                              ", addend ", neighbors.has_addend, ", relu ", neighbors.has_relu));
    const Vector expected = Apart(neighbors);
    EXPECT_EQ(AtOnce(neighbors, /*loads_weights_early=*/false), expected);
    EXPECT_EQ(AtOnce(neighbors, /*loads_weights_early=*/true), expected);
  }
}

// One chunk of inputs and parts of one, less than a warp has and more, one strip and parts of one.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (size_t tile = 0; tile < FewRowsTiles().size(); ++tile) {
    for (const LinearShape& shape :
         {LinearShape{8, 64, 64, Activation::kNone, /*has_bias=*/false},
          LinearShape{1, 8, 8, Activation::kGelu}, LinearShape{3, 40, 136, Activation::kGelu},
          LinearShape{5, 1096, 24, Activation::kRelu}, LinearShape{8, 2080, 72}}) {
      cases.push_back({shape, tile});
    }
  }
  return cases;
}
std::string NameOfCase(const ::testing::TestParamInfo<Case>& info) {
  const auto& [shape, tile] = info.param;
  return absl::StrCat(shape.rows, "x", shape.inputs, "x", shape.outputs, "_",
                      FewRowsTiles()[tile].columns, "by", FewRowsTiles()[tile].warps, "by",
                      FewRowsTiles()[tile].blocks);
}
INSTANTIATE_TEST_SUITE_P(Tiles, FewRows, ::testing::ValuesIn(Cases()), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Tiles, FewRowsWithNeighbors, ::testing::ValuesIn(Cases()), NameOfCase);

TEST(FewRowsRefusal, IsOfWhatTheLibraryTakes) {
  const FewRowsArguments fits = {.rows = 8, .inputs = 16, .outputs = 24};
  EXPECT_TRUE(FitsFewRows(ElementType::kBfloat16, fits));
  EXPECT_FALSE(FitsFewRows(ElementType::kFloat32, fits));
  FewRowsArguments other = fits;
  other.rows = 9;
  EXPECT_FALSE(FitsFewRows(ElementType::kBfloat16, other));
  other = fits;
  other.inputs = 20;
  EXPECT_FALSE(FitsFewRows(ElementType::kBfloat16, other));
  other = fits;
  other.outputs = 20;
  EXPECT_FALSE(FitsFewRows(ElementType::kBfloat16, other));
}

}  // namespace
}  // namespace stagecoach::kernels::few_rows_test
