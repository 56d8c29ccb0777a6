// One training step of a small network against the same step in double precision
// (kernels/reference/), for several numbers of micro-batches, whose results are equal except for
// rounding.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

namespace reference = kernels::reference;
using kernels::LayerNormShape;
using kernels::LinearShape;
using reference::Vector;
using ::stagecoach::testing::ActivationBound;
using ::stagecoach::testing::ActivationDerivativeBound;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::ToDouble;

constexpr int64_t R = 8;   // rows of the batch
constexpr int64_t I = 6;   // features
constexpr int64_t H = 10;  // width
constexpr int64_t C = 4;   // classes
constexpr float kLearningRate = 0.5F;
constexpr double kUnit = 0x1p-24;  // unit roundoff of float32

// The exact value of a tensor, and how far a float32 computation of it may be off to first order:
// the propagated errors of its operands, and its own roundings by the rule of
// tests/testing/tolerance.h. Bounds are doubled at the end, which covers products of errors.
struct Bounded {
  Vector value;
  Vector error;

  static Bounded Exact(const std::vector<float>& values) {
    return {ToDouble(values), Vector(values.size(), 0.0)};
  }
};

// sum += factor * terms
void AddTo(Vector& sum, const Vector& terms, double factor = 1.0) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * terms[i];
}

Bounded Sum(const Bounded& a, const Bounded& b) {
  Bounded sum{reference::Add(a.value, b.value), a.error};
  AddTo(sum.error, b.error);
  AddTo(sum.error, Magnitudes(sum.value), kUnit);
  return sum;
}

// A linear layer, whose parameters are exact.
class LinearOracle {
 public:
  LinearOracle(Trainer& trainer, const std::string& prefix, const LinearShape& shape)
      : shape_(shape),
        product_{shape.rows, shape.inputs, shape.outputs, Activation::kNone},
        w_(ToDouble(trainer.Parameter(prefix + "weight").value())),
        b_(ToDouble(trainer.Parameter(prefix + "bias").value())) {}

  Bounded Forward(const Bounded& x) {
    x_ = x;
    const reference::LinearOutput output = reference::LinearForward(shape_, x.value, w_, b_);
    const Vector w = Magnitudes(w_), b = Magnitudes(b_);
    z_.value = output.z;
    z_.error = reference::LinearForward(product_, x.error, w, Vector(b.size())).z;
    AddTo(z_.error, reference::LinearForward(product_, Magnitudes(x.value), w, b).z,
          Gamma(shape_.inputs + 1));
    if (shape_.activation == Activation::kNone) return z_;
    Bounded y{output.y, z_.error};
    for (size_t i = 0; i < y.error.size(); ++i) {
      y.error[i] = ActivationBound(Activation::kGelu, z_.value[i], z_.error[i]);
    }
    return y;
  }

  // Returns dx; keeps the gradients of the parameters.
  Bounded Backward(const Bounded& dy) {
    constexpr double kLargestSecondDerivative = 0.85;  // of GELU
    const auto exact = reference::LinearBackwardInput(shape_, dy.value, z_.value, w_);
    Bounded dz{exact.dz, dy.error};
    if (shape_.activation != Activation::kNone) {
      for (size_t i = 0; i < dz.error.size(); ++i) {
        const double derivative_error = ActivationDerivativeBound(Activation::kGelu, z_.value[i]) +
                                        kLargestSecondDerivative * z_.error[i];
        dz.error[i] = dy.error[i] * std::fabs(reference::ActivationDerivative(Activation::kGelu,
                                                                              z_.value[i])) +
                      std::fabs(dy.value[i]) * derivative_error + kUnit * std::fabs(dz.value[i]);
      }
    }
    const Vector w = Magnitudes(w_), z = Magnitudes(dz.value), x = Magnitudes(x_.value);
    Bounded dx{exact.dx, reference::LinearBackwardInput(product_, dz.error, z, w).dx};
    AddTo(dx.error, reference::LinearBackwardInput(product_, z, z, w).dx, Gamma(shape_.outputs));

    auto gradient = reference::LinearBackwardWeight(product_, x_.value, dz.value);
    auto bound = reference::LinearBackwardWeight(product_, x, dz.error);
    AddTo(bound.dw, reference::LinearBackwardWeight(product_, x_.error, z).dw);
    const auto magnitude = reference::LinearBackwardWeight(product_, x, z);
    AddTo(bound.dw, magnitude.dw, Gamma(shape_.rows));
    AddTo(bound.db, magnitude.db, Gamma(shape_.rows));
    dw = {std::move(gradient.dw), std::move(bound.dw)};
    db = {std::move(gradient.db), std::move(bound.db)};
    return dx;
  }

  const Vector& w() const { return w_; }
  const Vector& b() const { return b_; }
  Bounded dw, db;

 private:
  const LinearShape shape_;
  const LinearShape product_;  // without the activation
  const Vector w_, b_;
  Bounded x_, z_;
};

// Layer normalization with its initial parameters, gamma = 1 and beta = 0.
class LayerNormOracle {
 public:
  Bounded Forward(const Bounded& x) {
    x_ = x;
    auto output = reference::LayerNormForward(kShape, x.value, kOnes, Vector(H));
    statistics_ = output.statistics;
    xhat_ = {output.y, Vector(output.y.size())};
    for (int64_t r = 0; r < R; ++r) {
      const double mean = statistics_[2 * r], rstd = statistics_[2 * r + 1];
      double largest_error = 0.0, largest_x = 0.0;
      for (int64_t c = 0; c < H; ++c) {
        largest_error = std::max(largest_error, x.error[At(r, c)]);
        largest_x = std::max(largest_x, std::fabs(x.value[At(r, c)]));
      }
      // The errors of x - mean, and of rstd, relatively: the variance moves by at most 2 stddev
      // times the former.
      const double centered = 2.0 * largest_error + Gamma(H + 1) * (largest_x + std::fabs(mean));
      rstd_error_.push_back(rstd * centered + Gamma(H + 12));
      for (int64_t c = 0; c < H; ++c) {
        const double value = std::fabs(xhat_.value[At(r, c)]);
        xhat_.error[At(r, c)] = rstd * centered + value * (rstd_error_.back() + 3.0 * kUnit);
      }
    }
    return xhat_;
  }

  Bounded Backward(const Bounded& dy) {
    Bounded dx{reference::LayerNormBackwardInput(kShape, dy.value, x_.value, kOnes, statistics_),
               Vector(dy.value.size())};
    for (int64_t r = 0; r < R; ++r) {
      // The magnitudes and errors of the means of dy and of dy xhat.
      double m1 = 0.0, m1_error = 0.0, m2 = 0.0, m2_error = 0.0;
      for (int64_t c = 0; c < H; ++c) {
        const size_t i = At(r, c);
        const double g = std::fabs(dy.value[i]), xhat = std::fabs(xhat_.value[i]);
        m1 += g / H;
        m2 += g * xhat / H;
        m1_error += (dy.error[i] + Gamma(H) * g) / H;
        m2_error += (dy.error[i] * xhat + g * xhat_.error[i] + Gamma(H + 2) * g * xhat) / H;
      }
      for (int64_t c = 0; c < H; ++c) {
        const size_t i = At(r, c);
        const double g = std::fabs(dy.value[i]), xhat = std::fabs(xhat_.value[i]);
        const double inner = dy.error[i] + m1_error + xhat_.error[i] * m2 + xhat * m2_error +
                             Gamma(4) * (g + m1 + xhat * m2);
        dx.error[i] = statistics_[2 * r + 1] * inner +
                      std::fabs(dx.value[i]) * rstd_error_[static_cast<size_t>(r)];
      }
    }
    auto gradient = reference::LayerNormBackwardWeight(kShape, dy.value, x_.value, statistics_);
    dgamma = {std::move(gradient.dgamma), Vector(H)};
    dbeta = {std::move(gradient.dbeta), Vector(H)};
    for (int64_t r = 0; r < R; ++r) {
      for (size_t c = 0; c < H; ++c) {
        const size_t i = At(r, static_cast<int64_t>(c));
        const double g = std::fabs(dy.value[i]), xhat = std::fabs(xhat_.value[i]);
        dgamma.error[c] += dy.error[i] * xhat + g * xhat_.error[i] + Gamma(R + 1) * g * xhat;
        dbeta.error[c] += dy.error[i] + Gamma(R) * g;
      }
    }
    return dx;
  }

  Bounded dgamma, dbeta;

 private:
  static constexpr LayerNormShape kShape{R, H, 1e-5F};
  static size_t At(int64_t row, int64_t column) { return static_cast<size_t>(row * H + column); }

  const Vector kOnes = Vector(H, 1.0);
  Bounded x_, xhat_;
  Vector statistics_, rstd_error_;
};

// The mean of the losses, and the gradient of the output.
struct LossOracle {
  LossOracle(const Bounded& output, const std::vector<int32_t>& labels) {
    const auto exact = reference::SoftmaxCrossEntropy({R, C}, output.value, labels, R, 1.0 / R);
    loss = exact.loss / R;
    correct = exact.correct;
    gradient = {exact.gradient, Vector(exact.gradient.size())};
    for (size_t r = 0; r < R; ++r) {
      // Logarithms of the probabilities move by at most twice as much as any output of the row,
      // whose differences from the largest one are rounded once.
      double moved = 0.0;
      for (size_t c = 0; c < C; ++c) {
        const size_t i = r * C + c;
        moved = std::max(moved, output.error[i] + 2.0 * kUnit * std::fabs(output.value[i]));
      }
      loss_error += 2.0 * moved / R;
      for (size_t c = 0; c < C; ++c) gradient.error[r * C + c] = (2.0 * moved + 3.0 * kUnit) / R;
    }
  }

  double loss = 0.0, loss_error = 0.0;
  int64_t correct = 0;
  Bounded gradient;
};

Model OracleModel() {
  return {.input = Shape{I},
          .layers = {Linear(H, Activation::kGelu),
                     Residual({LayerNorm(), Linear(H, Activation::kGelu)}), Linear(C)}};
}

class OracleStep : public ::testing::TestWithParam<int> {
 protected:
  OracleStep()
      : features_(stagecoach::testing::RandomNormal(R * I, 1)),
        labels_(stagecoach::testing::RandomLabels(R, C, 2)),
        data_(TableDataset::Create({I}, C, features_, labels_).value()) {
    const Model model = OracleModel();
    trainer_ = MakeTrainer(model, EvenPlan(model, 2, "1f1b", GetParam(), R / GetParam()),
                           {.optimizer = Optimizer::Sgd(/*momentum=*/0.0F),
                            .learning_rate = LearningRate::Constant(kLearningRate)});
  }

  // Expects that the parameter is now where one step along the gradient leads.
  void ExpectStepped(const std::string& name, const Vector& before, const Bounded& gradient) {
    reference::SgdState state{before, Vector(before.size())};
    reference::Sgd({.learning_rate = kLearningRate, .momentum = 0.0F}, gradient.value, state);
    Vector bound = gradient.error;
    for (size_t i = 0; i < bound.size(); ++i) {
      const double step = kLearningRate * std::fabs(gradient.value[i]);
      bound[i] = 2.0 * (kLearningRate * bound[i] + Gamma(3) * (std::fabs(before[i]) + step));
    }
    EXPECT_THAT(ToDouble(trainer_->Parameter(name).value()), CloseTo(state.parameter, bound))
        << name;
  }

  const std::vector<float> features_;
  const std::vector<int32_t> labels_;
  const std::shared_ptr<const Dataset> data_;
  std::unique_ptr<Trainer> trainer_;
};

TEST_P(OracleStep, MatchesTheReferenceInDoublePrecision) {
  LinearOracle first(*trainer_, "layer 0: ", {R, I, H, Activation::kGelu});
  LayerNormOracle norm;
  LinearOracle inner(*trainer_, "layer 1: 1.", {R, H, H, Activation::kGelu});
  LinearOracle last(*trainer_, "layer 2: ", {R, H, C, Activation::kNone});
  const Bounded a = first.Forward(Bounded::Exact(features_));
  const Bounded b = Sum(a, inner.Forward(norm.Forward(a)));
  const LossOracle loss(last.Forward(b), labels_);
  const Bounded db = last.Backward(loss.gradient);
  first.Backward(Sum(db, norm.Backward(inner.Backward(db))));

  ASSERT_OK_AND_ASSIGN(const StepResult step, trainer_->Step(*data_, Rows(0, R)));
  EXPECT_NEAR(step.loss, loss.loss, 2.0 * loss.loss_error);
  EXPECT_EQ(step.correct, loss.correct);
  ExpectStepped("layer 0: weight", first.w(), first.dw);
  ExpectStepped("layer 0: bias", first.b(), first.db);
  ExpectStepped("layer 1: 0.gamma", Vector(H, 1.0), norm.dgamma);
  ExpectStepped("layer 1: 0.beta", Vector(H, 0.0), norm.dbeta);
  ExpectStepped("layer 1: 1.weight", inner.w(), inner.dw);
  ExpectStepped("layer 1: 1.bias", inner.b(), inner.db);
  ExpectStepped("layer 2: weight", last.w(), last.dw);
  ExpectStepped("layer 2: bias", last.b(), last.db);
}

INSTANTIATE_TEST_SUITE_P(MicroBatches, OracleStep, ::testing::Values(1, 2, 4),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stagecoach::engine
