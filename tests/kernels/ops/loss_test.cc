#include "kernels/ops/loss.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/losses.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::loss_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::Addresses;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;
using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  LossKind kind;
  LossShape shape;
};

std::vector<Case> OfBothKinds(const std::vector<LossShape>& shapes) {
  std::vector<Case> cases;
  for (const LossKind kind : kLossKinds) {
    for (const LossShape& shape : shapes) cases.push_back({kind, shape});
  }
  return cases;
}

std::string NameOf(const Case& of) {
  return absl::StrCat(
      of.kind == LossKind::kSoftmaxCrossEntropy ? "cross_entropy_" : "squared_error_",
      of.shape.rows, "x", of.shape.classes,
      of.shape.positions == 1 ? "" : absl::StrCat("_of_", of.shape.positions));
}

enum class Gradient { kSeparate, kInPlace, kNone };

class Loss : public OpTest<Case> {
 protected:
  bool is_cross_entropy() const { return shape().kind == LossKind::kSoftmaxCrossEntropy; }
  // Marks the samples of the last rows as padding and fills them with values that would spoil every
  // sum.
  void Pad(int64_t rows) {
    valid_rows_ = (of_.rows - rows) / of_.positions * of_.positions;
    std::fill(output_.begin() + valid_rows_ * of_.classes, output_.end(),
              std::numeric_limits<float>::quiet_NaN());
    std::fill(labels_.begin() + valid_rows_, labels_.end(), -1);
  }

  // Returns loss and number of correct rows; and the gradient.
  std::array<Vector, 2> Compute(Gradient where = Gradient::kSeparate) const {
    return Results(
        [&](OpBench& bench) {
          LossOp& op = is_cross_entropy() ? bench.Create(SoftmaxCrossEntropyShape{of_})
                                          : bench.Create(MeanSquaredErrorShape{of_});
          const Shape matrix{of_.rows, of_.classes};
          const Tensor output = bench.Operand(matrix, output_);
          const Tensor labels = bench.Integers({of_.rows}, labels_);
          const Tensor gradient = where == Gradient::kInPlace ? output
                                  : where == Gradient::kNone  ? Tensor{}
                                                              : bench.Result(matrix);
          const Tensor result = bench.ResultOf(DType::kFloat64, {2});
          const LossTerms* const terms =
              bench.Place(LossTerms{valid_rows_ / of_.positions, scale_});
          std::byte* const workspace = bench.Workspace(op.workspace_bytes());
          bench.Run([&](Stream& stream) {
            return op.Compute(stream, output, labels, terms, gradient, result, workspace);
          });
          return std::array{result, gradient};
        },
        addresses_);
  }

  // Bounds of the loss sum and of each gradient, for arithmetic in float32.
  struct Bounds {
    double loss = 0;
    Vector gradient;
  };

  // o - max is off by u |o - max|, which becomes the relative error of its exponential; their sum S
  // has the roundings of a row's sum. A GPU rescales them whenever it finds a larger maximum: a
  // thread at most once for each of its values, and once for the row. log S and o[label] - max are
  // added. A probability is a quotient of two such sums.
  void AddCrossEntropyRow(reference::Values output, double scale, Bounds& bounds) const {
    const auto& precision = PrecisionOf(DType::kFloat32);
    const auto [smallest, largest] = std::minmax_element(output.begin(), output.end());
    const double log_classes = std::log(static_cast<double>(output.size()));
    const double spread = *largest - *smallest;
    const auto row_sum = backend().row_sum(std::ssize(output));
    double sum_error = static_cast<double>(row_sum.roundings) + precision.elementary + spread;
    if (!backend().is_cpu) {
      const double rescalings = static_cast<double>(row_sum.share) + 1.0;
      sum_error += spread + rescalings * (precision.elementary + 2.0);
    }
    bounds.loss += precision.unit_roundoff * (sum_error + precision.elementary * log_classes +
                                              spread + (spread + log_classes));
    double sum = 0;
    for (const double value : output) sum += std::exp(value - *largest);
    const double relative = sum_error + 2.0 * precision.elementary + spread + 3.0;
    for (const double value : output) {
      const double probability = std::exp(value - *largest) / sum;
      bounds.gradient.push_back(
          std::fabs(scale) *
          (precision.unit_roundoff * (relative * probability + 1.0) + precision.underflow));
    }
  }

  void AddSquaredErrorRow(reference::Values output, double scale, Bounds& bounds) const {
    const auto classes = static_cast<double>(output.size());
    double sum = 0;
    for (const double value : output) {
      const double largest_error = std::fabs(value) + 1.0;
      sum += largest_error * largest_error;
      bounds.gradient.push_back(Gamma(8) * std::fabs(scale) * 2.0 / classes * largest_error);
    }
    bounds.loss += Gamma(backend().row_sum(std::ssize(output)).roundings + 8) * sum / classes;
  }

  Bounds BoundsOf(const Vector& expected_gradient) const {
    const auto C = static_cast<size_t>(of_.classes), valid = static_cast<size_t>(valid_rows_) * C;
    const auto P = static_cast<double>(of_.positions);
    const Vector output = ToDouble(output_);
    Bounds bounds;
    for (size_t begin = 0; begin < valid; begin += C) {
      if (labels_[begin / C] == kNoLabel) {
        bounds.gradient.resize(begin + C, 0.0);
        continue;
      }
      const auto row = reference::Values(output).subspan(begin, C);
      if (is_cross_entropy()) {
        AddCrossEntropyRow(row, scale_ / P, bounds);
      } else {
        AddSquaredErrorRow(row, scale_ / P, bounds);
      }
    }
    bounds.loss /= P;
    // The divided scale is rounded as well, and every gradient is a multiple of it.
    for (size_t i = 0; i < valid && P > 1; ++i) {
      bounds.gradient[i] += Gamma(1) * (std::fabs(expected_gradient[i]) + bounds.gradient[i]);
    }
    bounds.gradient.resize(output.size(), 0.0);
    return bounds;
  }

  void ExpectMatchesReference() const {
    const auto expected =
        ReferenceLoss(shape().kind, of_, ToDouble(output_), labels_, valid_rows_, scale_);
    const Bounds bounds = BoundsOf(expected.gradient);
    const auto [result, gradient] = Compute();
    EXPECT_NEAR(result[0], expected.loss, bounds.loss);
    EXPECT_EQ(result[1], static_cast<double>(expected.correct));
    EXPECT_THAT(gradient, Near(expected.gradient, bounds.gradient));
    const auto padding = gradient.begin() + valid_rows_ * of_.classes;
    EXPECT_TRUE(std::all_of(padding, gradient.end(), [](double value) { return value == 0.0; }));
  }

  LossShape of_ = shape().shape;
  Addresses addresses_ = Addresses::kAligned;
  int64_t valid_rows_ = of_.rows;
  float scale_ = 0.125F;
  std::vector<float> output_ = Rounded(RandomNormal(of_.rows * of_.classes, 1));
  std::vector<int32_t> labels_ = RandomLabels(of_.rows, of_.classes, 2);
};

TEST_P(Loss, MatchesReference) { ExpectMatchesReference(); }

TEST_P(Loss, PaddingCountsForNothing) {
  Pad((of_.rows + 1) / 2);
  ExpectMatchesReference();
}

// Here the outputs of the rows would spoil every sum.
TEST_P(Loss, ARowWithoutALabelCountsForNothing) {
  const int64_t rows = of_.rows;
  for (int64_t r = rows / 2; r < rows; r += 3) {
    labels_[static_cast<size_t>(r)] = kNoLabel;
    std::fill_n(output_.begin() + r * of_.classes, of_.classes,
                std::numeric_limits<float>::quiet_NaN());
  }
  ExpectMatchesReference();
  const Vector gradient = Compute(Gradient::kInPlace)[1];
  for (int64_t i = 0; i < rows * of_.classes; ++i) {
    if (labels_[static_cast<size_t>(i / of_.classes)] != kNoLabel) continue;
    EXPECT_EQ(gradient[static_cast<size_t>(i)], 0.0) << i;
  }
}

TEST_P(Loss, GradientMayOverwriteTheOutputOrBeMissing) {
  const auto [result, gradient] = Compute();
  const auto [result_in_place, gradient_in_place] = Compute(Gradient::kInPlace);
  EXPECT_THAT(gradient_in_place, HasTheBitsOf(gradient));
  EXPECT_THAT(result_in_place, HasTheBitsOf(result));
  EXPECT_THAT(Compute(Gradient::kNone)[0], HasTheBitsOf(result));
}

TEST_P(Loss, UnalignedRowsMatchReference) {
  addresses_ = Addresses::kUnaligned;
  ExpectMatchesReference();
}

// Rows of one class, of several of a CPU's tiles, as long as a block of threads and longer, whole
// vectors and not; samples of several rows.
INSTANTIATE_OP_TEST_FROM(Loss, NameOf,
                         OfBothKinds({{1, 1},
                                      {5, 1},
                                      {1, 10},
                                      {17, 2},
                                      {64, 10},
                                      {3, 1024},
                                      {2, 1025},
                                      {2, 1032},
                                      {12, 10, 4},
                                      {33, 300, 33}}));

using LossOfLongOrManyRows = Loss;

TEST_P(LossOfLongOrManyRows, MatchesReference) { ExpectMatchesReference(); }

INSTANTIATE_OP_TEST_FROM(
    LossOfLongOrManyRows, NameOf,
    OfBothKinds({{1, 50257}, {1, 50304}, {1, 200'001}, {2, 16400}, {2049, 3}}));

// The following tests have one shape each.
using LossOfFewRows = Loss;
INSTANTIATE_OP_TEST_FROM(LossOfFewRows, NameOf, OfBothKinds({{3, 5}}));

TEST_P(LossOfFewRows, OnlyPaddingIsALossOfZero) {
  Pad(3);
  EXPECT_THAT(Compute()[0], ElementsAre(0.0, 0.0));
}

TEST_P(LossOfFewRows, FirstOfSeveralLargestOutputsIsThePrediction) {
  output_ = {1, 1, 0, 0, 0, 1, 1, 0, 0, 0, -1, 0, 0, -1, -1};
  labels_ = {0, 1, 1};
  EXPECT_EQ(Compute()[0][1], 2.0);
}

TEST_P(LossOfFewRows, OutputsThatAreNotNumbersShowInTheLoss) {
  output_[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Compute(Gradient::kNone)[0][0]));
}

// Labels far out of range, where a read would be detected, and just out of range.
TEST_P(LossOfFewRows, ALabelThatIsNoClassMakesItsRowNoNumber) {
  const Vector good = Compute()[1];
  for (const int32_t label :
       {-2, 5, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    labels_[1] = label;
    for (const Gradient where : {Gradient::kSeparate, Gradient::kInPlace}) {
      const auto [result, gradient] = Compute(where);
      EXPECT_TRUE(std::isnan(result[0])) << label;
      for (size_t i = 0; i < good.size(); ++i) {
        if (i / 5 == 1) {
          EXPECT_TRUE(std::isnan(gradient[i])) << label << ", " << i;
        } else {
          EXPECT_EQ(gradient[i], good[i]) << label << ", " << i;
        }
      }
    }
  }
}

// If the loss is not finite, its gradient must show it. Only GPUs square in float32.
TEST_P(LossOfFewRows, AnInfiniteLossHasAGradientThatIsNotFinite) {
  output_[1] = is_cross_entropy() || backend().is_cpu ? -kInfinity : -1e30F;
  labels_[0] = 1;
  const auto [result, gradient] = Compute();
  EXPECT_EQ(result[0], HUGE_VAL);
  EXPECT_FALSE(std::isfinite(gradient[1]));
}

// Different warps find the two.
using LossOfLongRows = Loss;
INSTANTIATE_OP_TEST_FROM(LossOfLongRows, NameOf, OfBothKinds({{2, 4096}}));

TEST_P(LossOfLongRows, FirstOfSeveralLargestOutputsIsThePrediction) {
  std::fill(output_.begin(), output_.end(), 0.0F);
  for (const size_t row : {0, 1}) {
    for (const size_t c : {3000, 1001}) output_[row * 4096 + c] = 2.0F;
  }
  labels_ = {1001, 3000};
  EXPECT_EQ(Compute()[0][1], 1.0);
}

using LossOfSamples = Loss;
INSTANTIATE_OP_TEST_FROM(LossOfSamples, NameOf, OfBothKinds({{12, 5, 4}}));

TEST_P(LossOfSamples, IsTheMeanOverThePositionsOfASample) {
  const auto [of_samples, gradient] = Compute();
  of_.positions = 1;
  auto [of_rows, quarters] = Compute();
  EXPECT_EQ(of_samples[0], of_rows[0] / 4);
  EXPECT_EQ(of_samples[1], of_rows[1]) << "each position counts";
  // A quarter is a power of two.
  for (double& value : quarters) value /= 4;
  EXPECT_EQ(gradient, quarters);
}

using CrossEntropy = Loss;
INSTANTIATE_OP_TEST(CrossEntropy, NameOf, Case{LossKind::kSoftmaxCrossEntropy, {3, 3}});

TEST_P(CrossEntropy, SurvivesOutputsWhoseExponentialsOverflow) {
  output_ = Rounded({1e4F, -1e4F, 0.0F, -1e4F, -1e4F, -1e4F, 300.0F, 299.0F, -80.0F});
  labels_ = {1, 0, 2};
  ExpectMatchesReference();
}

// Classes that are masked out.
TEST_P(CrossEntropy, OutputsOfMinusInfinityHaveNoProbability) {
  output_ = {-kInfinity, 1.0F, 1.0F, 0.0F, -kInfinity, 0.0F, 2.0F, 2.0F, -kInfinity};
  labels_ = {2, 2, 0};
  scale_ = 1.0F;
  const auto [result, gradient] = Compute();
  EXPECT_EQ(gradient, (Vector{0.0, 0.5, -0.5, 0.5, 0.0, -0.5, -0.5, 0.5, 0.0}));
  EXPECT_DOUBLE_EQ(result[0], 3.0 * std::log(2.0));
}

// The last rows are padding.
class ErrorOfValues : public OpTest<MeanSquaredErrorOfValuesShape> {
 protected:
  int64_t valid_rows() const { return shape().rows - 3; }

  std::array<Vector, 2> Compute(bool in_place = false) const {
    return Results([&](OpBench& bench) {
      LossOp& op = bench.Create(shape());
      const Shape matrix{shape().rows, shape().classes};
      const Tensor output = bench.Operand(matrix, output_);
      const Tensor targets = bench.Floats(matrix, targets_);
      const Tensor gradient = in_place ? output : bench.Result(matrix);
      const Tensor result = bench.ResultOf(DType::kFloat64, {2});
      const LossTerms* const terms = bench.Place(LossTerms{valid_rows(), 0.5F});
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) {
        return op.Compute(stream, output, targets, terms, gradient, result, workspace);
      });
      return std::array{result, gradient};
    });
  }

  const int64_t elements_ = shape().rows * shape().classes;
  const std::vector<float> output_ = Rounded(RandomNormal(elements_, 1));
  const std::vector<float> targets_ = RandomNormal(elements_, 2);
};

// A CPU computes in double.
TEST_P(ErrorOfValues, IsTheMeanOfSquaresOfEachRow) {
  const auto C = static_cast<double>(shape().classes);
  double loss = 0.0;
  Vector expected(output_.size(), 0.0), bounds(output_.size(), 0.0);
  for (size_t i = 0; i < static_cast<size_t>(valid_rows() * shape().classes); ++i) {
    const double error = static_cast<double>(output_[i]) - targets_[i];
    loss += error * error / C;
    expected[i] = 0.5 * 2.0 / C * error;
    bounds[i] = Gamma(backend().is_cpu ? 1 : 8) * std::fabs(expected[i]);
  }
  const auto [result, gradient] = Compute();
  EXPECT_NEAR(
      result[0], loss,
      loss * (backend().is_cpu ? 1e-12 : Gamma(backend().row_sum(shape().classes).roundings + 8)));
  EXPECT_EQ(result[1], 0.0);
  EXPECT_THAT(gradient, Near(expected, bounds));
  EXPECT_EQ(gradient.back(), 0.0);
}

TEST_P(ErrorOfValues, HasTheSameBitsInPlace) {
  const auto expected = Compute(), actual = Compute(/*in_place=*/true);
  EXPECT_THAT(actual[0], HasTheBitsOf(expected[0]));
  EXPECT_THAT(actual[1], HasTheBitsOf(expected[1]));
}

// One number per row and several, whole vectors and not.
INSTANTIATE_OP_TEST(
    ErrorOfValues, [](const LossShape& of) { return absl::StrCat(of.rows, "x", of.classes); },
    MeanSquaredErrorOfValuesShape{{37, 1}}, MeanSquaredErrorOfValuesShape{{37, 3}},
    MeanSquaredErrorOfValuesShape{{37, 16}}, MeanSquaredErrorOfValuesShape{{37, 1032}});

template <typename Kind>
void ExpectRefused() {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  std::vector<Kind> shapes;
  for (const LossShape& shape : std::vector<LossShape>{{0, 1},
                                                       {-1, 1},
                                                       {1, 0},
                                                       {1, -1},
                                                       {kHuge, 1},
                                                       {1, kHuge},
                                                       // Samples have equally many positions.
                                                       {6, 2, 4},
                                                       {6, 2, 0},
                                                       {6, 2, -3}}) {
    shapes.push_back({shape});
  }
  ExpectInvalid(shapes);
}

TEST(LossRefusal, IsAnInvalidArgument) {
  ExpectRefused<SoftmaxCrossEntropyShape>();
  ExpectRefused<MeanSquaredErrorShape>();
  ExpectRefused<MeanSquaredErrorOfValuesShape>();
}

}  // namespace
}  // namespace stagecoach::kernels::loss_test
