#include "kernels/ops/loss.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/loss_kernels.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/kernels/losses.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::loss_test {
namespace {

using reference::Vector;
using testing::CloseTo;
using testing::ElementTypeOf;
using testing::EmulatedGpu;
using testing::Gamma;
using testing::InEveryOrder;
using testing::kActivationTypes;
using testing::NameOf;
using testing::Precision;
using testing::PrecisionOf;
using testing::RandomLabels;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::StoredBound;
using testing::ToDouble;

struct Problem {
  Problem(DType type_in, LossKind kind_in, const LossShape& shape_in)
      : type(type_in), kind(kind_in), shape(shape_in), valid_rows(shape_in.rows) {
    output = RoundedTo(type, RandomNormal(shape.rows * shape.classes, 1));
    labels = RandomLabels(shape.rows, shape.classes, 2);
  }
  // Marks the samples of the last rows as padding and fills them with what would spoil every sum.
  void Pad(int64_t rows) {
    valid_rows = (shape.rows - rows) / shape.positions * shape.positions;
    std::fill(output.begin() + valid_rows * shape.classes, output.end(),
              std::numeric_limits<float>::quiet_NaN());
    std::fill(labels.begin() + valid_rows, labels.end(), -1);
  }

  LossTerms terms() const { return {valid_rows / shape.positions, scale}; }

  DType type;
  LossKind kind;
  LossShape shape;
  int64_t valid_rows;
  float scale = 0.125F;
  int64_t offset = 0;  // of output and gradient, in elements
  std::vector<float> output;
  std::vector<int32_t> labels;
};

enum class Gradient { kSeparate, kInPlace, kNone };

struct Results {
  Vector result, gradient;
};
Results Compute(const Problem& problem, Gradient where = Gradient::kSeparate) {
  const auto results = InEveryOrder([&](EmulatedGpu& gpu) {
    const Tensor output = gpu.Operand(problem.type, problem.output, problem.offset);
    const Tensor gradient = where == Gradient::kInPlace ? output
                            : where == Gradient::kNone
                                ? Tensor{}
                                : gpu.Result(problem.type, output.elements(), problem.offset);
    const Tensor result = gpu.Result(DType::kFloat64, 2);
    const LossArguments arguments = {.rows = problem.shape.rows,
                                     .classes = problem.shape.classes,
                                     .positions = problem.shape.positions,
                                     .terms = gpu.Upload<LossTerms>({problem.terms()}),
                                     .output = output.data,
                                     .labels = gpu.Integers(problem.labels).i32(),
                                     .gradient = gradient.data,
                                     .workspace = reinterpret_cast<LossOfRow*>(
                                         gpu.Result(DType::kFloat64, 2 * problem.shape.rows).data),
                                     .result = result.f64()};
    const auto launch = problem.kind == LossKind::kSoftmaxCrossEntropy ? LaunchSoftmaxCrossEntropy
                                                                       : LaunchMeanSquaredError;
    EXPECT_EQ(launch(gpu.stream(), ElementTypeOf(problem.type), arguments), cudaSuccess);
    return std::vector<Vector>{gpu.Values(result),
                               gradient.empty() ? Vector{} : gpu.Values(gradient)};
  });
  return {results[0], results[1]};
}

// Bounds of the loss sum and of each gradient, for arithmetic in float32.
struct Bounds {
  double loss = 0;
  Vector gradient;
};

// The values of a row that a thread adds up, and the roundings that a term of the row's sum can
// meet: those, 5 in its warp, and 16 warps.
int64_t ThreadShare(int64_t classes) {
  return std::min(classes, std::max<int64_t>(32, classes / 512 + 8));
}
int64_t RowSumRoundings(int64_t classes) {
  return std::min(classes, ThreadShare(classes) + 5 + 16);
}

// o - max is off by u |o - max|, which becomes the relative error of its exponential. It is
// rescaled whenever a larger maximum is found: by a thread at most once for each of its values,
// and once for the row. log of the sum S and o[label] - max are added. A probability is a quotient
// of two such.
void AddCrossEntropyRow(reference::Values output, double scale, Bounds& bounds) {
  const Precision& precision = PrecisionOf(DType::kFloat32);
  const auto [smallest, largest] = std::minmax_element(output.begin(), output.end());
  const double classes = static_cast<double>(output.size());
  const double spread = *largest - *smallest;
  const auto C = static_cast<int64_t>(output.size());
  const double rescalings = static_cast<double>(ThreadShare(C)) + 1.0;
  const double sum_error = static_cast<double>(RowSumRoundings(C)) + precision.elementary +
                           2.0 * spread + rescalings * (precision.elementary + 2.0);
  const double loss_error =
      sum_error + precision.elementary * std::log(classes) + spread + (spread + std::log(classes));
  bounds.loss += precision.unit_roundoff * loss_error;
  double sum = 0;
  for (double value : output) sum += std::exp(value - *largest);
  const double relative = sum_error + 2.0 * precision.elementary + spread + 3.0;
  for (double value : output) {
    const double probability = std::exp(value - *largest) / sum;
    bounds.gradient.push_back(
        std::fabs(scale) *
        (precision.unit_roundoff * (relative * probability + 1.0) + precision.underflow));
  }
}

void AddSquaredErrorRow(reference::Values output, double scale, Bounds& bounds) {
  const auto classes = static_cast<int64_t>(output.size());
  double sum = 0;
  for (double value : output) {
    const double largest_error = std::fabs(value) + 1.0;
    sum += largest_error * largest_error;
    bounds.gradient.push_back(Gamma(8) * std::fabs(scale) * 2.0 / static_cast<double>(classes) *
                              largest_error);
  }
  bounds.loss += Gamma(RowSumRoundings(classes) + 8) * sum / static_cast<double>(classes);
}

Bounds BoundsOf(const Problem& problem, const Vector& gradient) {
  const auto C = static_cast<size_t>(problem.shape.classes);
  const Vector output = ToDouble(problem.output);
  const size_t valid = static_cast<size_t>(problem.valid_rows) * C;
  Bounds bounds;
  for (size_t begin = 0; begin < valid; begin += C) {
    const auto row = reference::Values(output).subspan(begin, C);
    if (problem.kind == LossKind::kSoftmaxCrossEntropy) {
      AddCrossEntropyRow(row, problem.scale, bounds);
    } else {
      AddSquaredErrorRow(row, problem.scale, bounds);
    }
  }
  for (size_t i = 0; i < valid; ++i) {
    bounds.gradient[i] = StoredBound(gradient[i], bounds.gradient[i], problem.type);
  }
  // The gradient of padding is exactly zero.
  bounds.gradient.resize(output.size(), 0.0);
  return bounds;
}

void ExpectMatchesReference(const Problem& problem) {
  const Results actual = Compute(problem);
  const auto expected = ReferenceLoss(problem.kind, problem.shape, ToDouble(problem.output),
                                      problem.labels, problem.valid_rows, problem.scale);
  const Bounds bounds = BoundsOf(problem, expected.gradient);
  EXPECT_NEAR(actual.result[0], expected.loss, bounds.loss);
  EXPECT_EQ(actual.result[1], static_cast<double>(expected.correct));
  EXPECT_THAT(actual.gradient, CloseTo(expected.gradient, bounds.gradient));
}

std::string NameOfKind(LossKind kind) {
  return kind == LossKind::kSoftmaxCrossEntropy ? "cross_entropy" : "squared_error";
}

using Parameter = std::tuple<DType, LossKind, LossShape>;
std::string NameOfProblem(const ::testing::TestParamInfo<Parameter>& param_info) {
  const auto& [type, kind, shape] = param_info.param;
  return absl::StrCat(NameOf(type), "_", NameOfKind(kind), "_", shape.rows, "x", shape.classes);
}

class CudaLoss : public ::testing::TestWithParam<Parameter> {
 protected:
  Problem problem_{std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam())};
};

TEST_P(CudaLoss, MatchesReference) { ExpectMatchesReference(problem_); }

TEST_P(CudaLoss, PaddingCountsForNothing) {
  problem_.Pad((problem_.shape.rows + 1) / 2);
  ExpectMatchesReference(problem_);
}

TEST_P(CudaLoss, GradientMayOverwriteTheOutput) {
  const Results expected = Compute(problem_), actual = Compute(problem_, Gradient::kInPlace);
  EXPECT_TRUE(actual.gradient == expected.gradient);
  EXPECT_EQ(actual.result, expected.result);
}

TEST_P(CudaLoss, ResultDoesNotNeedTheGradient) {
  EXPECT_EQ(Compute(problem_, Gradient::kNone).result, Compute(problem_).result);
}

TEST_P(CudaLoss, UnalignedRowsMatchReference) {
  problem_.offset = 1;
  ExpectMatchesReference(problem_);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLoss,
    ::testing::Combine(::testing::ValuesIn(kActivationTypes), ::testing::ValuesIn(kLossKinds),
                       ::testing::Values(LossShape{1, 1}, LossShape{5, 1}, LossShape{1, 10},
                                         LossShape{17, 2}, LossShape{64, 10}, LossShape{3, 1024},
                                         LossShape{2, 1025}, LossShape{2, 1032},
                                         LossShape{1, 50257}, LossShape{1, 50304})),
    NameOfProblem);

class CudaLossOfKind : public ::testing::TestWithParam<std::tuple<DType, LossKind>> {
 protected:
  Problem Make(const LossShape& shape) const {
    return {std::get<0>(GetParam()), std::get<1>(GetParam()), shape};
  }
};

TEST_P(CudaLossOfKind, VeryLongRowMatchesReference) { ExpectMatchesReference(Make({1, 1000001})); }

TEST_P(CudaLossOfKind, ManyRowsMatchReference) { ExpectMatchesReference(Make({2049, 3})); }

TEST_P(CudaLossOfKind, OnlyPaddingIsALossOfZero) {
  Problem problem = Make({.rows = 3, .classes = 4});
  problem.Pad(3);
  EXPECT_THAT(Compute(problem).result, ::testing::ElementsAre(0.0, 0.0));
}

TEST_P(CudaLossOfKind, FirstOfSeveralLargestOutputsIsThePrediction) {
  Problem problem = Make({.rows = 3, .classes = 3});
  problem.output = {1, 1, 0, 1, 1, 0, -1, 0, 0};
  problem.labels = {0, 1, 1};
  EXPECT_EQ(Compute(problem).result[1], 2.0);
}

// The two are found by different warps.
TEST_P(CudaLossOfKind, FirstOfSeveralLargestOutputsIsThePredictionInLongRows) {
  Problem problem = Make({.rows = 2, .classes = 4096});
  std::fill(problem.output.begin(), problem.output.end(), 0.0F);
  for (size_t row : {0, 1}) {
    for (size_t c : {3000, 1001}) problem.output[row * 4096 + c] = 2.0F;
  }
  problem.labels = {1001, 3000};
  EXPECT_EQ(Compute(problem).result[1], 1.0);
}

TEST_P(CudaLossOfKind, OutputsThatAreNotNumbersShowInTheLoss) {
  Problem problem = Make({.rows = 2, .classes = 5});
  problem.output[3] = std::numeric_limits<float>::quiet_NaN();
  EmulatedGpu gpu;
  const Tensor output = gpu.Operand(problem.type, problem.output);
  const Tensor result = gpu.Result(DType::kFloat64, 2);
  const auto launch = problem.kind == LossKind::kSoftmaxCrossEntropy ? LaunchSoftmaxCrossEntropy
                                                                     : LaunchMeanSquaredError;
  ASSERT_EQ(launch(gpu.stream(), ElementTypeOf(problem.type),
                   {.rows = 2,
                    .classes = 5,
                    .terms = gpu.Upload<LossTerms>({LossTerms{.valid_samples = 2}}),
                    .output = output.data,
                    .labels = gpu.Integers(problem.labels).i32(),
                    .workspace = reinterpret_cast<LossOfRow*>(gpu.Result(DType::kFloat64, 4).data),
                    .result = result.f64()}),
            cudaSuccess);
  EXPECT_TRUE(std::isnan(gpu.Values(result)[0]));
}

// Far away, so that a read there would not go unnoticed, and just beside.
TEST_P(CudaLossOfKind, ALabelThatIsNoClassMakesItsRowNoNumber) {
  for (const int32_t label :
       {-1, 5, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    Problem problem = Make({.rows = 3, .classes = 5});
    const Results good = Compute(problem);
    problem.labels[1] = label;
    for (const Gradient where : {Gradient::kSeparate, Gradient::kInPlace}) {
      const Results actual = Compute(problem, where);
      EXPECT_TRUE(std::isnan(actual.result[0])) << label;
      for (size_t i = 0; i < good.gradient.size(); ++i) {
        if (i / 5 == 1) {
          EXPECT_TRUE(std::isnan(actual.gradient[i])) << label << ", " << i;
        } else {
          EXPECT_EQ(actual.gradient[i], good.gradient[i]) << label << ", " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaLossOfKind,
                         ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                                            ::testing::ValuesIn(kLossKinds)));

TEST(CudaCrossEntropy, SurvivesOutputsWhoseExponentialsOverflow) {
  Problem problem(DType::kFloat32, LossKind::kSoftmaxCrossEntropy, {.rows = 3, .classes = 3});
  problem.output = {1e4F, -1e4F, 0.0F, -1e4F, -1e4F, -1e4F, 300.0F, 299.0F, -80.0F};
  problem.labels = {1, 0, 2};
  ExpectMatchesReference(problem);
}

// Where the loss is not finite, its gradient must show it.
TEST_P(CudaLossOfKind, AnInfiniteLossHasAGradientThatIsNoNumber) {
  Problem problem = Make({.rows = 1, .classes = 3});
  problem.output = {1.0F, -1e30F, 1.0F};
  if (problem.kind == LossKind::kSoftmaxCrossEntropy) problem.output[1] = -HUGE_VALF;
  problem.labels = {1};
  const Results actual = Compute(problem);
  EXPECT_EQ(actual.result[0], HUGE_VAL);
  EXPECT_TRUE(std::isnan(actual.gradient[1]));
}

// Classes that are masked out.
TEST(CudaCrossEntropy, OutputsOfMinusInfinityHaveNoProbability) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  Problem problem(DType::kFloat32, LossKind::kSoftmaxCrossEntropy, {.rows = 1, .classes = 4});
  problem.output = {kMasked, 1.0F, 1.0F, kMasked};
  problem.labels = {2};
  problem.scale = 1.0F;
  const Results actual = Compute(problem);
  EXPECT_EQ(actual.gradient, (Vector{0.0, 0.5, -0.5, 0.0}));
  EXPECT_DOUBLE_EQ(actual.result[0], std::log(2.0));
}

// One number a row and several, whole vectors and not; the last row is padding.
class CudaErrorOfValues : public ::testing::TestWithParam<std::tuple<DType, int64_t>> {};

TEST_P(CudaErrorOfValues, IsTheMeanOfSquaresOfEachRow) {
  const auto& [type, values] = GetParam();
  constexpr int64_t kRows = 35;
  const std::vector<float> output = RoundedTo(type, RandomNormal(kRows * values, 1));
  const std::vector<float> targets = RandomNormal(kRows * values, 2);
  const auto results = InEveryOrder([&, type = type, values = values](EmulatedGpu& gpu) {
    const Tensor y = gpu.Operand(type, output), dy = gpu.Result(type, y.elements());
    const Tensor result = gpu.Result(DType::kFloat64, 2);
    const LossArguments arguments = {
        .rows = kRows,
        .classes = values,
        .terms = gpu.Upload<LossTerms>({LossTerms{.valid_samples = kRows - 1, .scale = 0.5F}}),
        .output = y.data,
        .values = gpu.Operand(DType::kFloat32, targets).f32(),
        .gradient = dy.data,
        .workspace = reinterpret_cast<LossOfRow*>(gpu.Result(DType::kFloat64, 2 * kRows).data),
        .result = result.f64()};
    EXPECT_EQ(LaunchMeanSquaredErrorOfValues(gpu.stream(), ElementTypeOf(type), arguments),
              cudaSuccess);
    return std::vector<Vector>{gpu.Values(result), gpu.Values(dy)};
  });
  const auto C = static_cast<double>(values);
  double loss = 0.0;
  Vector gradient(output.size(), 0.0), bounds(output.size(), 0.0);
  for (size_t i = 0; i < static_cast<size_t>((kRows - 1) * values); ++i) {
    const double error = static_cast<double>(output[i]) - targets[i];
    loss += error * error / C;
    gradient[i] = 0.5 * 2.0 / C * error;
    bounds[i] = StoredBound(gradient[i], Gamma(8) * std::fabs(gradient[i]), type);
  }
  EXPECT_NEAR(results[0][0], loss, Gamma(RowSumRoundings(values) + 8) * loss);
  EXPECT_EQ(results[0][1], 0.0);
  EXPECT_THAT(results[1], CloseTo(gradient, bounds));
}

INSTANTIATE_TEST_SUITE_P(Values, CudaErrorOfValues,
                         ::testing::Combine(::testing::ValuesIn(kActivationTypes),
                                            ::testing::Values(1, 3, 16, 1032)));

}  // namespace
}  // namespace stagecoach::kernels::loss_test
