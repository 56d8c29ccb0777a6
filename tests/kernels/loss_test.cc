#include "kernels/ops/loss.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/losses.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::loss_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::Precision;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;
using ::testing::ElementsAre;

struct Problem {
  Problem(LossKind kind_in, const LossShape& shape_in)
      : kind(kind_in), shape(shape_in), valid_rows(shape_in.rows) {
    output = RandomNormal(shape.rows * shape.classes, 1);
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

  LossKind kind;
  LossShape shape;
  int64_t valid_rows;
  float scale = 0.125F;
  std::vector<float> output;
  std::vector<int32_t> labels;
};

enum class Gradient { kSeparate, kInPlace, kNone };

class OnDevice {
 public:
  explicit OnDevice(const Problem& problem, int threads = 1) : problem_(problem), device_(threads) {
    auto op = CreateLoss(device_.ops(), problem.kind, problem.shape);
    EXPECT_OK(op);
    op_ = *std::move(op);
  }

  struct Results {
    Tensor gradient, result;
  };
  Results Compute(Gradient where = Gradient::kSeparate) {
    const Shape matrix{problem_.shape.rows, problem_.shape.classes};
    const Tensor output = device_.Operand(matrix, problem_.output);
    const Tensor gradient = where == Gradient::kInPlace ? output
                            : where == Gradient::kNone  ? Tensor{}
                                                        : device_.Result(matrix);
    const Tensor result = device_.Result(Shape{2}, DType::kFloat64);
    std::byte* const workspace = device_.Workspace(op_->workspace_bytes());
    const LossTerms terms = problem_.terms();
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Compute(stream, output, device_.Labels(problem_.labels), &terms, gradient, result,
                          workspace);
    }));
    return {gradient, result};
  }

 private:
  const Problem& problem_;
  TestDevice device_;
  std::unique_ptr<LossOp> op_;
};

reference::LossOutput Expected(const Problem& problem) {
  return ReferenceLoss(problem.kind, problem.shape, ToDouble(problem.output), problem.labels,
                       problem.valid_rows, problem.scale);
}

// Bounds of the loss sum and of each gradient, for arithmetic in float.
struct Bounds {
  double loss = 0;
  Vector gradient;
};

// o - max is off by u |o - max|, which becomes the relative error of its exponential; their sum S
// has C terms; log S and o[label] - max are added. A probability is a quotient of two such.
void AddCrossEntropyRow(reference::Values output, double scale, Bounds& bounds) {
  const Precision& precision = PrecisionOf(DType::kFloat32);
  const auto [smallest, largest] = std::minmax_element(output.begin(), output.end());
  const double classes = static_cast<double>(output.size());
  const double spread = *largest - *smallest;
  const double sum_error = classes + precision.elementary + spread;
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
  bounds.loss += Gamma(classes + 8) * sum / static_cast<double>(classes);
}

Bounds BoundsOf(const Problem& problem) {
  const auto C = static_cast<size_t>(problem.shape.classes);
  const auto P = static_cast<double>(problem.shape.positions);
  const Vector output = ToDouble(problem.output);
  Bounds bounds;
  for (size_t r = 0; r < static_cast<size_t>(problem.valid_rows); ++r) {
    const auto row = reference::Values(output).subspan(r * C, C);
    if (problem.kind == LossKind::kSoftmaxCrossEntropy) {
      AddCrossEntropyRow(row, problem.scale / P, bounds);
    } else {
      AddSquaredErrorRow(row, problem.scale / P, bounds);
    }
  }
  bounds.loss /= P;
  // The divided scale is rounded as well, and every gradient is a multiple of it.
  const Vector expected = Expected(problem).gradient;
  for (size_t i = 0; i < bounds.gradient.size() && P > 1; ++i) {
    bounds.gradient[i] += Gamma(1) * std::fabs(expected[i]) + Gamma(1) * bounds.gradient[i];
  }
  // The gradient of padding is exactly zero.
  bounds.gradient.resize(output.size(), 0.0);
  return bounds;
}

void ExpectMatchesReference(const Problem& problem) {
  OnDevice device(problem);
  const auto [gradient, result] = device.Compute();
  const reference::LossOutput expected = Expected(problem);
  const Bounds bounds = BoundsOf(problem);
  EXPECT_NEAR(result.f64()[0], expected.loss, bounds.loss);
  EXPECT_EQ(result.f64()[1], static_cast<double>(expected.correct));
  EXPECT_THAT(TestDevice::Values(gradient), CloseTo(expected.gradient, bounds.gradient));
}

class CpuLoss : public ::testing::TestWithParam<std::tuple<LossKind, LossShape>> {
 protected:
  Problem problem_{std::get<0>(GetParam()), std::get<1>(GetParam())};
};

TEST_P(CpuLoss, MatchesReference) { ExpectMatchesReference(problem_); }

TEST_P(CpuLoss, PaddingCountsForNothing) {
  problem_.Pad((problem_.shape.rows + 1) / 2);
  ExpectMatchesReference(problem_);
}

TEST_P(CpuLoss, GradientMayOverwriteTheOutput) {
  OnDevice separate(problem_), in_place(problem_);
  const auto expected = separate.Compute();
  const auto actual = in_place.Compute(Gradient::kInPlace);
  EXPECT_EQ(BytesOf(actual.gradient), BytesOf(expected.gradient));
  EXPECT_EQ(BytesOf(actual.result), BytesOf(expected.result));
}

TEST_P(CpuLoss, ResultDoesNotNeedTheGradient) {
  OnDevice with(problem_), without(problem_);
  EXPECT_EQ(BytesOf(without.Compute(Gradient::kNone).result), BytesOf(with.Compute().result));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuLoss,
    ::testing::Combine(::testing::ValuesIn(kLossKinds),
                       ::testing::Values(LossShape{1, 1}, LossShape{5, 1}, LossShape{1, 10},
                                         LossShape{17, 2}, LossShape{64, 10}, LossShape{33, 1001},
                                         LossShape{12, 10, 4}, LossShape{33, 300, 33})));

class CpuLossOfKind : public ::testing::TestWithParam<LossKind> {};

TEST_P(CpuLossOfKind, OnlyPaddingIsALossOfZero) {
  Problem problem(GetParam(), {.rows = 3, .classes = 4});
  problem.Pad(3);
  OnDevice device(problem);
  EXPECT_THAT(TestDevice::Values(device.Compute().result), ElementsAre(0.0, 0.0));
}

TEST_P(CpuLossOfKind, FirstOfSeveralLargestOutputsIsThePrediction) {
  Problem problem(GetParam(), {.rows = 3, .classes = 3});
  problem.output = {1, 1, 0, 1, 1, 0, -1, 0, 0};
  problem.labels = {0, 1, 1};
  OnDevice device(problem);
  EXPECT_EQ(device.Compute().result.f64()[1], 2.0);
}

TEST_P(CpuLossOfKind, ALossIsTheMeanOverThePositionsOfASample) {
  Problem rows(GetParam(), {.rows = 12, .classes = 5});
  Problem samples = rows;
  samples.shape.positions = 4;
  OnDevice one(rows), four(samples);
  const auto of_rows = one.Compute();
  const auto of_samples = four.Compute();
  EXPECT_EQ(of_samples.result.f64()[0], of_rows.result.f64()[0] / 4);
  EXPECT_EQ(of_samples.result.f64()[1], of_rows.result.f64()[1]) << "each position counts";
  // A quarter is a power of two.
  Vector quarters = TestDevice::Values(of_rows.gradient);
  for (double& value : quarters) value /= 4;
  EXPECT_EQ(TestDevice::Values(of_samples.gradient), quarters);
}

TEST_P(CpuLossOfKind, SamplesHaveEquallyManyPositions) {
  TestDevice device;
  EXPECT_OK(CreateLoss(device.ops(), GetParam(), {6, 2, 3}));
  for (const LossShape shape : {LossShape{6, 2, 4}, LossShape{6, 2, 0}, LossShape{6, 2, -3}}) {
    EXPECT_THAT(CreateLoss(device.ops(), GetParam(), shape),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST_P(CpuLossOfKind, AnyNumberOfThreadsGivesTheSameBits) {
  const Problem problem(GetParam(), {.rows = 131, .classes = 77});
  OnDevice one(problem, 1);
  const auto expected = one.Compute();
  for (int threads : {2, 3}) {
    OnDevice several(problem, threads);
    const auto actual = several.Compute();
    EXPECT_EQ(BytesOf(actual.gradient), BytesOf(expected.gradient)) << threads << " threads";
    EXPECT_EQ(BytesOf(actual.result), BytesOf(expected.result)) << threads << " threads";
  }
}

TEST_P(CpuLossOfKind, ExtentsOutOfRangeAreInvalid) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  TestDevice device;
  for (const LossShape shape : {LossShape{0, 1}, LossShape{-1, 1}, LossShape{1, 0},
                                LossShape{1, -1}, LossShape{kHuge, 1}, LossShape{1, kHuge}}) {
    EXPECT_THAT(CreateLoss(device.ops(), GetParam(), shape),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << shape.rows << " rows, " << shape.classes << " classes";
  }
}

TEST_P(CpuLossOfKind, ALabelThatIsNoClassMakesItsRowNoNumber) {
  for (const int32_t label :
       {-1, 5, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    Problem problem(GetParam(), {.rows = 3, .classes = 5});
    OnDevice good(problem);
    const Vector expected = TestDevice::Values(good.Compute().gradient);
    problem.labels[1] = label;
    for (const Gradient where : {Gradient::kSeparate, Gradient::kInPlace}) {
      OnDevice device(problem);
      const auto actual = device.Compute(where);
      EXPECT_TRUE(std::isnan(actual.result.f64()[0])) << label;
      const Vector gradient = TestDevice::Values(actual.gradient);
      for (size_t i = 0; i < gradient.size(); ++i) {
        if (i / 5 == 1) {
          EXPECT_TRUE(std::isnan(gradient[i])) << label << ", " << i;
        } else {
          EXPECT_EQ(gradient[i], expected[i]) << label << ", " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CpuLossOfKind, ::testing::ValuesIn(kLossKinds));

// Where the loss is not finite, its gradient must show it.
TEST(CpuCrossEntropy, OfALabelOfMinusInfinityIsInfiniteAndItsGradientNoNumber) {
  Problem problem(LossKind::kSoftmaxCrossEntropy, {.rows = 1, .classes = 3});
  problem.output = {1.0F, -std::numeric_limits<float>::infinity(), 1.0F};
  problem.labels = {1};
  OnDevice device(problem);
  const auto actual = device.Compute();
  EXPECT_EQ(actual.result.f64()[0], HUGE_VAL);
  EXPECT_TRUE(std::isnan(actual.gradient.f32()[1]));
}

TEST(CpuCrossEntropy, SurvivesOutputsWhoseExponentialsOverflow) {
  Problem problem(LossKind::kSoftmaxCrossEntropy, {.rows = 3, .classes = 3});
  problem.output = {1e4F, -1e4F, 0.0F, -1e4F, -1e4F, -1e4F, 300.0F, 299.0F, -80.0F};
  problem.labels = {1, 0, 2};
  ExpectMatchesReference(problem);
}

// Rows of several numbers and of one, the last three of which are padding.
class CpuErrorOfValues : public ::testing::TestWithParam<int64_t> {
 protected:
  static constexpr int64_t kRows = 37, kValid = 34;

  struct Results {
    double loss, correct;
    Vector gradient;
  };
  Results Compute(int threads, bool in_place) const {
    TestDevice device(threads);
    const Shape shape{kRows, values_};
    const Tensor y = device.Operand(shape, output_);
    const Tensor dy = in_place ? y : device.Result(shape);
    const Tensor result = device.Result(Shape{2}, DType::kFloat64);
    const auto op = device.ops().Create(MeanSquaredErrorOfValuesShape{{kRows, values_}}).value();
    std::byte* const workspace = device.Workspace(op->workspace_bytes());
    const LossTerms terms = {kValid, 0.5F};
    EXPECT_OK(device.Run([&](Stream& stream) {
      return op->Compute(stream, y, device.Operand(shape, targets_), &terms, dy, result, workspace);
    }));
    return {result.f64()[0], result.f64()[1], TestDevice::Values(dy)};
  }

  const int64_t values_ = GetParam();
  const std::vector<float> output_ = RandomNormal(kRows * values_, 1);
  const std::vector<float> targets_ = RandomNormal(kRows * values_, 2);
};

TEST_P(CpuErrorOfValues, IsTheMeanOfSquaresOfEachRow) {
  const Results actual = Compute(1, /*in_place=*/false);
  const auto C = static_cast<double>(values_);
  double loss = 0.0;
  Vector gradient(output_.size(), 0.0), bounds(output_.size(), 0.0);
  for (size_t i = 0; i < static_cast<size_t>(kValid * values_); ++i) {
    const double error = static_cast<double>(output_[i]) - targets_[i];
    loss += error * error / C;
    gradient[i] = 0.5 * 2.0 / C * error;
    bounds[i] = Gamma(1) * std::fabs(gradient[i]);
  }
  EXPECT_NEAR(actual.loss, loss, 1e-12 * loss);
  EXPECT_EQ(actual.correct, 0.0);
  EXPECT_THAT(actual.gradient, CloseTo(gradient, bounds));
}

TEST_P(CpuErrorOfValues, HasTheSameBitsInPlaceAndForAnyNumberOfThreads) {
  const Results expected = Compute(1, /*in_place=*/false);
  for (const Results& actual : {Compute(1, true), Compute(3, false)}) {
    EXPECT_EQ(actual.loss, expected.loss);
    EXPECT_EQ(actual.gradient, expected.gradient);
  }
}

INSTANTIATE_TEST_SUITE_P(Values, CpuErrorOfValues, ::testing::Values(1, 5));

}  // namespace
}  // namespace stagecoach::kernels::loss_test
