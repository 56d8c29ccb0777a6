#include "tests/testing/reference.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/swiglu.h"
#include "tests/kernels/ops/losses.h"
#include "tests/testing/close_to.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/random_tensor.h"

// Tests the oracle against the definition of a derivative, and against cases computed by hand.
namespace stagecoach::kernels::reference {
namespace {

using ::stagecoach::testing::CentralDifferences;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ToDouble;
using ::testing::ElementsAre;

// Error of central differences of sums of about 100 terms of size one, whose fifth derivatives are
// below 1000.
constexpr double kDifferenceError = 1e-9;

Vector Random(int64_t elements, uint64_t stream) {
  return ToDouble(RandomNormal(elements, stream));
}

double Dot(Values a, Values b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class LinearReference : public ::testing::TestWithParam<Activation> {
 protected:
  const LinearShape shape_{.rows = 3, .inputs = 4, .outputs = 5, .activation = GetParam()};
  const Vector x_ = Random(3 * 4, 8);
  const Vector w_ = Random(4 * 5, 2);
  const Vector b_ = Random(5, 3);
  const Vector dy_ = Random(3 * 5, 4);

  void SetUp() override {
    for (double z : LinearForward(shape_, x_, w_, b_).z) {
      ASSERT_GT(std::fabs(z), 0.05) << "too close to the kink of ReLU for differences";
    }
  }

  // Returns a scalar whose derivative by y is dy.
  double Objective(const Vector& x, const Vector& w, const Vector& b) const {
    return Dot(LinearForward(shape_, x, w, b).y, dy_);
  }
};

TEST_P(LinearReference, InputGradientIsTheDerivative) {
  const Vector z = LinearForward(shape_, x_, w_, b_).z;
  EXPECT_THAT(LinearBackwardInput(shape_, dy_, z, w_).dx,
              CloseTo(CentralDifferences([&](const Vector& x) { return Objective(x, w_, b_); }, x_),
                      kDifferenceError));
}

TEST_P(LinearReference, WeightGradientIsTheDerivative) {
  const Vector z = LinearForward(shape_, x_, w_, b_).z;
  const Vector dz = LinearBackwardInput(shape_, dy_, z, w_).dz;
  EXPECT_THAT(LinearBackwardWeight(shape_, x_, dz).dw,
              CloseTo(CentralDifferences([&](const Vector& w) { return Objective(x_, w, b_); }, w_),
                      kDifferenceError));
}

TEST_P(LinearReference, BiasGradientIsTheDerivative) {
  const Vector z = LinearForward(shape_, x_, w_, b_).z;
  const Vector dz = LinearBackwardInput(shape_, dy_, z, w_).dz;
  EXPECT_THAT(LinearBackwardWeight(shape_, x_, dz).db,
              CloseTo(CentralDifferences([&](const Vector& b) { return Objective(x_, w_, b); }, b_),
                      kDifferenceError));
}

INSTANTIATE_TEST_SUITE_P(Activations, LinearReference, ::testing::ValuesIn(kAllActivations),
                         [](const auto& param_info) { return ActivationName(param_info.param); });

TEST(LinearReferenceByHand, MultipliesRowsByColumnsAndAddsTheBias) {
  const LinearShape shape{.rows = 2, .inputs = 2, .outputs = 3};
  EXPECT_THAT(
      LinearForward(shape, Vector{1, 2, 3, 4}, Vector{1, 0, -1, 10, 20, 30}, Vector{100, 200, 300})
          .y,
      ElementsAre(121, 240, 359, 143, 280, 417));
}

class SmoothReference : public ::testing::TestWithParam<Activation> {};

TEST_P(SmoothReference, DerivativeIsTheDerivative) {
  for (double z = -8.0; z <= 8.0; z += 0.125) {
    const Vector difference =
        CentralDifferences([](const Vector& v) { return Activate(GetParam(), v[0]); }, {z});
    EXPECT_NEAR(ActivationDerivative(GetParam(), z), difference[0], kDifferenceError) << z;
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, SmoothReference,
                         ::testing::Values(Activation::kGelu, Activation::kGeluExact,
                                           Activation::kTanh, Activation::kSigmoid),
                         [](const auto& param_info) { return ActivationName(param_info.param); });

TEST(GeluReferenceForms, AreCloseToEachOther) {
  // The tanh form approximates z Phi(z); the authors' figure shows a difference below 5e-4.
  for (double z = -8.0; z <= 8.0; z += 0.125) {
    const double exact = Activate(Activation::kGeluExact, z);
    EXPECT_NEAR(exact, z * 0.5 * std::erfc(-z / std::sqrt(2.0)), 1e-14) << z;
    EXPECT_NEAR(Activate(Activation::kGelu, z), exact, 5e-4) << z;
  }
}

TEST(AttentionReference, InputGradientIsTheDerivative) {
  for (const float rotary_base : {0.0F, 100.0F}) {
    const AttentionShape shape{.samples = 2,
                               .positions = 4,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_size = 4,
                               .rotary_base = rotary_base};
    const Vector qkv = Random(256, 1);
    const Vector dy = Random(128, 2);
    const auto objective = [&](const Vector& x) { return Dot(AttentionForward(shape, x).y, dy); };
    EXPECT_THAT(AttentionBackwardInput(shape, dy, qkv),
                CloseTo(CentralDifferences(objective, qkv), kDifferenceError))
        << rotary_base;
  }
}

TEST(AttentionReference, InputGradientOfAllOptionsIsTheDerivative) {
  const AttentionShape shape{.samples = 2,
                             .positions = 6,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_size = 4,
                             .rotary_base = 100.0F,
                             .window = 3,
                             .scale = 0.75F,
                             .score_cap = 1.5F,
                             .has_documents = true};
  const std::vector<int32_t> documents = {0, 0, 0, 0, 4, 4, 0, 1, 1, 1, 1, 1};
  const Vector qkv = Random(192, 1);
  const Vector dy = Random(96, 2);
  const auto objective = [&](const Vector& x) {
    return Dot(AttentionForward(shape, x, documents).y, dy);
  };
  EXPECT_THAT(AttentionBackwardInput(shape, dy, qkv, documents),
              CloseTo(CentralDifferences(objective, qkv), kDifferenceError));
}

TEST(AttentionReferenceByHand, SeesPositionsOfItsWindowAndDocument) {
  AttentionShape shape{.positions = 4,
                       .heads = 1,
                       .kv_heads = 1,
                       .head_size = 1,
                       .window = 3,
                       .has_documents = true};
  // Queries are 0, so that y is the mean of the values that are seen.
  const Vector qkv = {0, 1, 1, 0, 1, 3, 0, 1, 5, 0, 1, 13};
  const auto y = [&](const std::vector<int32_t>& documents) {
    return AttentionForward(shape, qkv, documents).y;
  };
  EXPECT_THAT(y({0, 0, 0, 0}), CloseTo(Vector{1, 2, 3, 7}, 1e-14));
  EXPECT_THAT(y({0, 0, 2, 2}), CloseTo(Vector{1, 2, 5, 9}, 1e-14));
  EXPECT_THAT(y({0, 1, 1, 3}), CloseTo(Vector{1, 3, 4, 13}, 1e-14));
}

TEST(AttentionReferenceByHand, ScalesAndCapsScores) {
  const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_size = 4, .scale = 3.0F};
  const Vector qkv = {1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_THAT(AttentionForward(shape, qkv).statistics, ElementsAre(6));
  AttentionShape capped = shape;
  capped.score_cap = 4.0F;
  EXPECT_THAT(AttentionForward(capped, qkv).statistics,
              CloseTo(Vector{4.0 * std::tanh(1.5)}, 1e-14));
}

TEST(AttentionReferenceByHand, WeighsValuesByTheirScores) {
  const AttentionShape shape{.positions = 2, .heads = 1, .kv_heads = 1, .head_size = 1};
  const double log3 = std::log(3.0);
  const auto out = AttentionForward(shape, Vector{5, 1, 2, log3, 2, 6});
  // Scores of the second position: log 3 and 2 log 3, that is, weights of 3 and 9.
  EXPECT_THAT(out.y, CloseTo(Vector{2, 0.25 * 2 + 0.75 * 6}, 1e-14));
  EXPECT_THAT(out.statistics, CloseTo(Vector{5, std::log(12.0)}, 1e-14));
}

TEST(AttentionReferenceByHand, HeadsOfAGroupReadTheSameKeysAndValues) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_size = 1};
  const auto out = AttentionForward(shape, Vector{1, 2, 3, 4, 10, 20, 5, 6});
  EXPECT_THAT(out.y, ElementsAre(5, 5, 6, 6));
  EXPECT_THAT(out.statistics, ElementsAre(10, 20, 60, 80));
}

// Pairs (0, 2) and (1, 3), the latter rotated by a hundredth of the angle.
TEST(AttentionReferenceByHand, TurnsPairsByTheirDistance) {
  const AttentionShape shape{
      .positions = 3, .heads = 1, .kv_heads = 1, .head_size = 4, .rotary_base = 10000.0F};
  Vector qkv;
  for (int t = 0; t < 3; ++t) qkv.insert(qkv.end(), {6, 0, 0, 2, 0, 0, 8, 2, 0, 0, 0, 0});
  // q is (6, 0) and (0, 2), k is (0, 8) and (0, 2); k is rotated by the distance less than q.
  const auto score = [](double distance) {
    return (48.0 * std::sin(distance) + 4.0 * std::cos(0.01 * distance)) / 2.0;
  };
  const double second = std::exp(score(1)) + std::exp(score(0));
  EXPECT_THAT(
      AttentionForward(shape, qkv).statistics,
      CloseTo(Vector{score(0), std::log(second), std::log(second + std::exp(score(2)))}, 1e-12));
}

class LayerNormReference : public ::testing::Test {
 protected:
  const LayerNormShape shape_{.rows = 3, .features = 7, .epsilon = 1e-2F};
  const Vector x_ = Random(3 * 7, 1);
  const Vector gamma_ = Random(7, 2);
  const Vector beta_ = Random(7, 3);
  const Vector dy_ = Random(3 * 7, 4);

  double Objective(const Vector& x, const Vector& gamma, const Vector& beta) const {
    return Dot(LayerNormForward(shape_, x, gamma, beta).y, dy_);
  }
  Vector Statistics() const { return LayerNormForward(shape_, x_, gamma_, beta_).statistics; }
};

TEST_F(LayerNormReference, RowsHaveMeanZeroAndAlmostUnitVariance) {
  const Vector ones(7, 1.0);
  const Vector y = LayerNormForward(shape_, x_, ones, Vector(7, 0.0)).y;
  const Vector statistics = Statistics();
  for (size_t r = 0; r < 3; ++r) {
    const Values row = Values(y).subspan(r * 7, 7);
    const double rstd = statistics[r * 2 + 1];
    EXPECT_NEAR(Dot(row, ones), 0.0, 1e-14);
    EXPECT_NEAR(Dot(row, row) / 7.0, 1.0 - shape_.epsilon * rstd * rstd, 1e-14);
  }
}

TEST_F(LayerNormReference, InputGradientIsTheDerivative) {
  EXPECT_THAT(
      LayerNormBackwardInput(shape_, dy_, x_, gamma_, Statistics()),
      CloseTo(CentralDifferences([&](const Vector& x) { return Objective(x, gamma_, beta_); }, x_),
              kDifferenceError));
}

TEST_F(LayerNormReference, GammaGradientIsTheDerivative) {
  EXPECT_THAT(LayerNormBackwardWeight(shape_, dy_, x_, Statistics()).dgamma,
              CloseTo(CentralDifferences(
                          [&](const Vector& gamma) { return Objective(x_, gamma, beta_); }, gamma_),
                      kDifferenceError));
}

TEST_F(LayerNormReference, BetaGradientIsTheDerivative) {
  EXPECT_THAT(LayerNormBackwardWeight(shape_, dy_, x_, Statistics()).dbeta,
              CloseTo(CentralDifferences(
                          [&](const Vector& beta) { return Objective(x_, gamma_, beta); }, beta_),
                      kDifferenceError));
}

// The same as LayerNorm without a mean.
TEST(RmsNormReference, GradientsAreTheDerivatives) {
  const LayerNormShape shape{.rows = 3, .features = 7, .centers = false};
  const Vector x = Random(3 * 7, 1), gamma = Random(7, 2), dy = Random(3 * 7, 4);
  const auto objective = [&](const Vector& x_at, const Vector& gamma_at) {
    return Dot(LayerNormForward(shape, x_at, gamma_at, {}).y, dy);
  };
  const Vector statistics = LayerNormForward(shape, x, gamma, {}).statistics;
  EXPECT_THAT(LayerNormBackwardInput(shape, dy, x, gamma, statistics),
              CloseTo(CentralDifferences([&](const Vector& at) { return objective(at, gamma); }, x),
                      kDifferenceError));
  EXPECT_THAT(LayerNormBackwardWeight(shape, dy, x, statistics).dgamma,
              CloseTo(CentralDifferences([&](const Vector& at) { return objective(x, at); }, gamma),
                      kDifferenceError));
}

TEST(RmsNormReference, IsXOverItsRootMeanSquare) {
  const LayerNormShape shape{.rows = 1, .features = 2, .epsilon = 1.5F, .centers = false};
  const LayerNormOutput output = LayerNormForward(shape, Vector{2, -1}, Vector{1, 3}, {});
  EXPECT_THAT(output.statistics, ElementsAre(0.5));
  EXPECT_THAT(output.y, ElementsAre(1, -1.5));
}

TEST(SwiGluReference, GradientIsTheDerivative) {
  const Vector x = Random(3 * 8, 1), dy = Random(3 * 4, 2);
  for (const GluGate gate : {GluGate::kSilu, GluGate::kGelu}) {
    const SwiGluShape shape{.rows = 3, .features = 4, .gate = gate};
    EXPECT_THAT(SwiGluBackward(shape, dy, x),
                CloseTo(CentralDifferences(
                            [&](const Vector& at) { return Dot(SwiGluForward(shape, at), dy); }, x),
                        kDifferenceError));
  }
}

TEST(SwiGluReference, MultipliesTheSecondHalfByTheGatedFirst) {
  EXPECT_THAT(SwiGluForward({.rows = 1, .features = 2}, Vector{0, 100, 3, 2}), ElementsAre(0, 200));
}

class LossReference : public ::testing::TestWithParam<LossKind> {};

TEST_P(LossReference, GradientIsTheDerivativeTimesTheScale) {
  const LossShape shape{.rows = 4, .classes = 6};
  const Vector output = Random(4 * 6, 1);
  const std::vector<int32_t> labels = RandomLabels(4, 6, 2);
  const double scale = 0.25;
  const auto scaled_loss = [&](const Vector& at) {
    return scale * ReferenceLoss(GetParam(), shape, at, labels, /*valid_rows=*/3, 1.0).loss;
  };
  EXPECT_THAT(ReferenceLoss(GetParam(), shape, output, labels, /*valid_rows=*/3, scale).gradient,
              CloseTo(CentralDifferences(scaled_loss, output), kDifferenceError));
}

INSTANTIATE_TEST_SUITE_P(Kinds, LossReference, ::testing::ValuesIn(kLossKinds));

TEST(LossReferenceByHand, CrossEntropyOfEqualOutputsIsTheLogarithmOfTheClasses) {
  const LossShape shape{.rows = 2, .classes = 5};
  const auto loss = SoftmaxCrossEntropy(shape, Vector(10, 1000.0), std::vector<int32_t>{0, 4},
                                        /*valid_rows=*/2, 1.0);
  EXPECT_NEAR(loss.loss, 2.0 * std::log(5.0), 1e-14);
}

TEST(LossReferenceByHand, SquaredErrorIsTheMeanOverTheClasses) {
  const LossShape shape{.rows = 1, .classes = 2};
  const auto loss =
      MeanSquaredError(shape, Vector{3.0, 0.5}, std::vector<int32_t>{1}, /*valid_rows=*/1, 1.0);
  EXPECT_EQ(loss.loss, (9.0 + 0.25) / 2.0);
  EXPECT_THAT(loss.gradient, ElementsAre(3.0, -0.5));
}

TEST(LossReferenceByHand, FirstOfSeveralLargestOutputsIsThePrediction) {
  const LossShape shape{.rows = 2, .classes = 3};
  const auto loss = MeanSquaredError(shape, Vector{1, 1, 0, 1, 1, 0}, std::vector<int32_t>{0, 1},
                                     /*valid_rows=*/2, 1.0);
  EXPECT_EQ(loss.correct, 1);
}

// With a constant gradient g both corrected moments are exact at every step: m^ = g, v^ = g^2.
TEST(AdamWReference, ConstantGradientMovesByTheLearningRateEachStep) {
  AdamWStep step{.learning_rate = 0.125F, .epsilon = 0.5F};
  AdamWState state{Vector{10.0, 10.0}, Vector(2), Vector(2)};
  const Vector gradient{8.0, -8.0};
  for (step.step = 1; step.step <= 50; ++step.step) AdamW(step, gradient, state, 0.25);
  const double distance = 50 * 0.125 * 2.0 / (2.0 + 0.5);
  EXPECT_THAT(state.parameter, CloseTo({10.0 - distance, 10.0 + distance}, 1e-10));
}

TEST(AdamWReference, WeightDecayShrinksParametersWithoutGradient) {
  AdamWStep step{.learning_rate = 0.5F, .weight_decay = 0.25F};
  AdamWState state{Vector{64.0, -8.0}, Vector(2), Vector(2)};
  for (step.step = 1; step.step <= 2; ++step.step) AdamW(step, Vector(2), state);
  EXPECT_THAT(state.parameter, ElementsAre(64.0 * 49 / 64, -8.0 * 49 / 64));
}

TEST(SgdReference, MomentumIsTheGeometricSumOfGradients) {
  const SgdStep step{.learning_rate = 0.5F, .momentum = 0.5F};
  SgdState state{Vector{0.0}, Vector{0.0}};
  for (int t = 0; t < 3; ++t) Sgd(step, Vector{1.0}, state, 2.0);
  EXPECT_THAT(state.momentum, ElementsAre(2.0 * (1.0 + 0.5 + 0.25)));
  EXPECT_THAT(state.parameter, ElementsAre(-0.5 * (2.0 + 3.0 + 3.5)));
}

TEST(SgdReference, WeightDecayJoinsTheGradient) {
  const SgdStep step{.learning_rate = 0.5F, .momentum = 0.0F, .weight_decay = 0.25F};
  SgdState state{Vector{8.0}, Vector{1.0}};
  Sgd(step, Vector{1.0}, state);
  EXPECT_THAT(state.parameter, ElementsAre(8.0 - 0.5 * 3.0));
}

TEST(ElementwiseReference, SquaredNormSumsSquares) {
  EXPECT_EQ(SquaredNorm(Vector{3.0, -4.0, 12.0}), 169.0);
}

TEST(ElementwiseReference, AddAdds) {
  EXPECT_THAT(Add(Vector{1, 2}, Vector{10, -20}), ElementsAre(11, -18));
}

}  // namespace
}  // namespace stagecoach::kernels::reference
