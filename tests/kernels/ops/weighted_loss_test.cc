#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/loss.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

// Cross-entropies with smoothed labels and weights of classes.
namespace stagecoach::kernels::weighted_loss_test {
namespace {

using ::nlohmann::json;
using reference::Vector;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;

struct Result {
  double loss = 0.0;
  int64_t correct = 0;
  Vector gradient, bounds;  // of an error of `roundings` roundings in float32
};

// The formula of kernels/ops/loss.h in double, for all rows.
Result Expected(const SoftmaxCrossEntropyShape& shape, const std::vector<float>& output,
                const std::vector<int32_t>& labels, double scale, int64_t roundings) {
  Result result;
  const auto C = static_cast<size_t>(shape.classes);
  const double e = shape.label_smoothing;
  for (size_t r = 0; r < labels.size(); ++r) {
    const float* const row = output.data() + r * C;
    const float* const largest = std::max_element(row, row + C);
    double sum = 0.0, total = 0.0;
    for (size_t c = 0; c < C; ++c) sum += std::exp(static_cast<double>(row[c]) - *largest);
    Vector q(C);
    for (size_t c = 0; c < C; ++c) {
      const double weight = shape.class_weights.empty() ? 1.0 : shape.class_weights[c];
      q[c] = e / static_cast<double>(C) * weight;
      if (static_cast<int32_t>(c) == labels[r]) q[c] += (1.0 - e) * weight;
      total += q[c];
    }
    for (size_t c = 0; c < C; ++c) {
      const double log_share = static_cast<double>(row[c]) - *largest - std::log(sum);
      const double spread = std::fabs(static_cast<double>(row[c]) - *largest);
      result.loss -= q[c] * log_share;
      const double share = std::exp(log_share) * total;
      result.gradient.push_back(scale * (share - q[c]));
      result.bounds.push_back(scale * (Gamma(roundings) * (share * (2.0 + spread) + q[c]) + 1e-30));
    }
    result.correct += largest - row == labels[r] ? 1 : 0;
  }
  return result;
}

class WeightedLoss : public OpTest<SoftmaxCrossEntropyShape> {
 protected:
  std::array<Vector, 2> Compute(bool in_place = false) const {
    return Results([&](OpBench& bench) {
      LossOp& op = bench.Create(shape());
      const Shape matrix{shape().rows, shape().classes};
      const Tensor output = bench.Operand(matrix, output_);
      const Tensor labels = bench.Integers({shape().rows}, labels_);
      const Tensor gradient = in_place ? output : bench.Result(matrix);
      const Tensor result = bench.ResultOf(DType::kFloat64, {2});
      const LossTerms* const terms = bench.Place(LossTerms{shape().rows, scale_});
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) {
        return op.Compute(stream, output, labels, terms, gradient, result, workspace);
      });
      return std::array{result, gradient};
    });
  }

  float scale_ = 0.125F;
  std::vector<float> output_ = Rounded(RandomNormal(shape().rows * shape().classes, 1));
  std::vector<int32_t> labels_ = RandomLabels(shape().rows, shape().classes, 2);
};

TEST_P(WeightedLoss, MatchesTheFormula) {
  const int64_t roundings = backend().row_sum(shape().classes).roundings + 32;
  const Result expected = Expected(shape(), output_, labels_, scale_, roundings);
  const auto [result, gradient] = Compute();
  EXPECT_NEAR(result[0], expected.loss,
              backend().is_cpu ? 1e-9 : Gamma(roundings) * 8.0 * (1.0 + expected.loss));
  EXPECT_EQ(result[1], static_cast<double>(expected.correct));
  EXPECT_THAT(gradient, Near(expected.gradient, expected.bounds));
}

TEST_P(WeightedLoss, HasTheSameBitsInPlace) {
  const auto expected = Compute(), actual = Compute(/*in_place=*/true);
  EXPECT_THAT(actual[0], HasTheBitsOf(expected[0]));
  EXPECT_THAT(actual[1], HasTheBitsOf(expected[1]));
}

TEST_P(WeightedLoss, RowsWithoutALabelCountNothing) {
  labels_[0] = kNoLabel;
  std::fill_n(output_.begin(), shape().classes, std::numeric_limits<float>::quiet_NaN());
  const auto [result, gradient] = Compute();
  EXPECT_TRUE(std::isfinite(result[0]));
  EXPECT_TRUE(std::all_of(gradient.begin(), gradient.begin() + shape().classes,
                          [](double value) { return value == 0.0; }));
}

TEST_P(WeightedLoss, ALossThatIsNotFiniteShowsInTheGradient) {
  output_[1] = -std::numeric_limits<float>::infinity();
  labels_[0] = 1;
  const auto [result, gradient] = Compute();
  EXPECT_FALSE(std::isfinite(result[0]));
  EXPECT_FALSE(std::isfinite(gradient[1]));
}

std::vector<float> Weights(int64_t classes) {
  std::vector<float> weights;
  for (int64_t c = 0; c < classes; ++c) weights.push_back(0.25F * static_cast<float>(c % 5 + 1));
  return weights;
}

INSTANTIATE_OP_TEST(
    WeightedLoss,
    [](const SoftmaxCrossEntropyShape& of) {
      return absl::StrCat(of.rows, "x", of.classes, of.label_smoothing > 0 ? "_smoothed" : "",
                          of.class_weights.empty() ? "" : "_weighted");
    },
    SoftmaxCrossEntropyShape{{3, 2}, 0.1F}, SoftmaxCrossEntropyShape{{17, 10}, 0.0F, Weights(10)},
    SoftmaxCrossEntropyShape{{5, 1032}, 0.3F, Weights(1032)},
    SoftmaxCrossEntropyShape{{2, 4097}, 0.2F, Weights(4097)});

// tests/fixtures/recipes/make.py; its losses are means over the sum of weights.
using WeightedLossOfPyTorch = WeightedLoss;
TEST_P(WeightedLossOfPyTorch, HasTheSameLossAndGradient) {
  const json fixture =
      base::ParseJson(
          *base::ReadFile(absl::StrCat(STAGECOACH_TEST_FIXTURES, "/recipes/recipes.json"), 1 << 20))
          ->at("losses");
  for (const json& one : fixture.at("cases")) {
    const auto weights = one.at("class_weights").get<std::vector<float>>();
    if (one.at("label_smoothing").get<float>() != shape().label_smoothing) continue;
    if (weights != shape().class_weights) continue;
    output_ = Rounded(fixture.at("logits").get<std::vector<float>>());
    labels_ = fixture.at("labels").get<std::vector<int32_t>>();
    double sum = 0.0;
    for (const int32_t label : labels_) {
      sum += weights.empty() ? 1.0 : weights[static_cast<size_t>(label)];
    }
    scale_ = static_cast<float>(1.0 / sum);
    const auto [result, gradient] = Compute();
    const double tolerance = type() == DType::kFloat32 ? 2e-6 : 3e-2;
    EXPECT_NEAR(result[0] / sum, one.at("loss").get<double>(), tolerance);
    const Vector expected = one.at("gradient").get<Vector>();
    ASSERT_EQ(gradient.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(gradient[i], expected[i], tolerance) << i;
    }
    return;
  }
  FAIL() << "the fixture has no such case";
}
INSTANTIATE_OP_TEST(
    WeightedLossOfPyTorch,
    [](const SoftmaxCrossEntropyShape& of) {
      return absl::StrCat(of.label_smoothing > 0 ? "smoothed" : "",
                          of.class_weights.empty() ? "" : "_weighted");
    },
    SoftmaxCrossEntropyShape{{6, 4}, 0.1F},
    SoftmaxCrossEntropyShape{{6, 4}, 0.0F, {1.0F, 2.0F, 0.5F, 0.25F}},
    SoftmaxCrossEntropyShape{{6, 4}, 0.3F, {1.0F, 0.0F, 0.5F, 4.0F}});

TEST(ClassWeights, RefusesWhatIsNoSmoothingAndNoWeight) {
  for (const SoftmaxCrossEntropyShape& shape :
       {SoftmaxCrossEntropyShape{{2, 2}, 1.0F}, SoftmaxCrossEntropyShape{{2, 2}, -0.1F},
        SoftmaxCrossEntropyShape{{2, 2}, 0.0F, {1.0F}},
        SoftmaxCrossEntropyShape{{2, 2}, 0.0F, {1.0F, -1.0F}}}) {
    EXPECT_EQ(CheckClassWeights(shape).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(CheckClassWeights(SoftmaxCrossEntropyShape{{2, 2}, 0.5F, {0.0F, 1.0F}}).ok());
}

}  // namespace
}  // namespace stagecoach::kernels::weighted_loss_test
