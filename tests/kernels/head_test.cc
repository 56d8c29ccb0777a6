#include "kernels/ops/head.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::head_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::BytesOf;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::Precision;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::stagecoach::testing::ToDouble;
using ::testing::Each;
using ::testing::ElementsAre;

struct Problem {
  explicit Problem(const HeadShape& shape_in) : shape(shape_in), valid_rows(shape_in.rows) {
    x = RandomNormal(shape.rows * shape.features, 1);
    w = RandomNormal(shape.classes * shape.features, 2);
    labels = RandomLabels(shape.rows, shape.classes, 3);
    dw = RandomNormal(shape.classes * shape.features, 4);
  }
  // Marks the samples of the last rows as padding, with an input of its own.
  void Pad(int64_t rows) {
    valid_rows = (shape.rows - rows) / shape.positions * shape.positions;
    std::fill(x.begin() + valid_rows * shape.features, x.end(), 100.0F);
    std::fill(labels.begin() + valid_rows, labels.end(), -1);
  }

  LossTerms terms() const { return {valid_rows / shape.positions, scale}; }

  HeadShape shape;
  int64_t valid_rows;
  float scale = 0.125F;
  std::vector<float> x, w, dw;
  std::vector<int32_t> labels;
};

struct Gradients {
  Tensor result, dx, dw;
};

enum class Pass { kSplit, kFused };

class OnDevice {
 public:
  explicit OnDevice(const Problem& problem, int threads = 1)
      : problem_(problem), shape_(problem.shape), device_(threads) {
    auto op = device_.ops().Create(shape_);
    EXPECT_OK(op);
    op_ = *std::move(op);
  }

  struct Forwarded {
    Tensor result, logits;
  };
  Forwarded Forward(bool wants_logits = true) {
    Forwarded forwarded = {.result = device_.Result(Shape{2}, DType::kFloat64), .logits = {}};
    if (wants_logits) forwarded.logits = device_.Result(Shape{shape_.rows, shape_.classes});
    const LossTerms terms = problem_.terms();
    EXPECT_OK(device_.Run([&](Stream& stream) {
      return op_->Forward(stream, x(), w(), labels(), &terms, forwarded.logits, forwarded.result,
                          Workspace());
    }));
    return forwarded;
  }

  Gradients Backward(Pass pass, bool accumulate = false, bool want_dx = true) {
    const Shape weights{shape_.classes, shape_.features};
    Gradients gradients;
    gradients.result = device_.Result(Shape{2}, DType::kFloat64);
    if (want_dx) gradients.dx = device_.Result(Shape{shape_.rows, shape_.features});
    gradients.dw = accumulate ? device_.Operand(weights, problem_.dw) : device_.Result(weights);
    const LossTerms terms = problem_.terms();
    EXPECT_OK(device_.Run([&](Stream& stream) -> absl::Status {
      if (pass == Pass::kFused) {
        return op_->Backward(stream, x(), w(), labels(), &terms, gradients.result, gradients.dx,
                             gradients.dw, accumulate, Workspace());
      }
      std::byte* const statistics = device_.Workspace(op_->statistics_bytes());
      const absl::Status input =
          op_->BackwardInput(stream, x(), w(), labels(), &terms, gradients.result, gradients.dx,
                             statistics, Workspace());
      if (!input.ok()) return input;
      return op_->BackwardWeight(stream, x(), w(), statistics, gradients.dw, accumulate,
                                 Workspace());
    }));
    return gradients;
  }

 private:
  // A new one for each call, whose bytes are not-a-number.
  std::byte* Workspace() { return device_.Workspace(op_->workspace_bytes()); }
  Tensor x() { return device_.Operand(Shape{shape_.rows, shape_.features}, problem_.x); }
  Tensor w() { return device_.Operand(Shape{shape_.classes, shape_.features}, problem_.w); }
  Tensor labels() { return device_.Labels(problem_.labels); }

  const Problem& problem_;
  const HeadShape shape_;
  TestDevice device_;
  std::unique_ptr<HeadOp> op_;
};

// (rows, columns) -> (columns, rows)
Vector Transposed(const Vector& values, int64_t rows, int64_t columns) {
  Vector out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

// The exact values, as a linear layer and a loss, and how far an operation in float may be from
// them.
struct Expected {
  explicit Expected(const Problem& problem)
      : shape(problem.shape),
        linear{shape.rows, shape.features, shape.classes, Activation::kNone, /*has_bias=*/false},
        x(ToDouble(problem.x)),
        w(Transposed(ToDouble(problem.w), shape.classes, shape.features)),
        logits(reference::LinearForward(linear, x, w, {}).y),
        loss(reference::SoftmaxCrossEntropy({shape.rows, shape.classes, shape.positions}, logits,
                                            problem.labels, problem.valid_rows, problem.scale)),
        dx(reference::LinearBackwardInput(linear, loss.gradient, logits, w).dx),
        dw(WeightGradient(x, loss.gradient)) {
    logit_bounds = reference::LinearForward(linear, Magnitudes(x), Magnitudes(w), {}).y;
    for (double& bound : logit_bounds) bound *= Gamma(shape.features);
    Vector gradient_bounds(logits.size());
    const double row_scale =
        static_cast<double>(problem.scale) / static_cast<double>(shape.positions);
    for (int64_t r = 0; r < problem.valid_rows; ++r) AddRow(r, row_scale, gradient_bounds);
    loss_bound /= static_cast<double>(shape.positions);
    Vector magnitudes = Magnitudes(loss.gradient);
    for (size_t i = 0; i < magnitudes.size(); ++i) magnitudes[i] += gradient_bounds[i];
    dx_bounds =
        Bounds(reference::LinearBackwardInput(linear, gradient_bounds, logits, Magnitudes(w)).dx,
               reference::LinearBackwardInput(linear, magnitudes, logits, Magnitudes(w)).dx,
               shape.classes);
    dw_bounds = Bounds(WeightGradient(Magnitudes(x), gradient_bounds),
                       WeightGradient(Magnitudes(x), magnitudes), shape.rows);
  }

  Vector WeightGradient(const Vector& inputs, const Vector& gradient) const {
    return Transposed(reference::LinearBackwardWeight(linear, inputs, gradient).dw, shape.features,
                      shape.classes);
  }

  // Logits that are off by at most e make a probability off by e^(2e), and the loss by 2e. Then
  // come the errors of the softmax: z - max is off by u |z - max|, which becomes the relative error
  // of its exponential; their sum has C terms; a probability is a quotient of two such.
  void AddRow(int64_t r, double row_scale, Vector& gradient_bounds) {
    const Precision& precision = PrecisionOf(DType::kFloat32);
    const auto C = static_cast<size_t>(shape.classes);
    const size_t first = static_cast<size_t>(r) * C;
    const auto row = reference::Values(logits).subspan(first, C);
    const auto bounds = reference::Values(logit_bounds).subspan(first, C);
    const double e = *std::max_element(bounds.begin(), bounds.end());
    const auto [smallest, largest] = std::minmax_element(row.begin(), row.end());
    const double spread = *largest - *smallest + 2.0 * e;
    const double sum_error =
        precision.unit_roundoff * (static_cast<double>(C) + precision.elementary + spread);
    loss_bound += 1.01 * (2.0 * e + sum_error + precision.unit_roundoff * spread);
    const double exponential_error =
        precision.unit_roundoff * (2.0 * precision.elementary + 2.0 * spread + 6.0);
    double sum = 0.0;
    for (const double value : row) sum += std::exp(value - *largest);
    for (size_t c = 0; c < C; ++c) {
      const double probability = std::exp(row[c] - *largest) / sum;
      gradient_bounds[first + c] =
          row_scale * (probability * std::expm1(1.01 * (2.0 * e + sum_error + exponential_error)) +
                       2.0 * precision.unit_roundoff + precision.underflow);
    }
  }

  // Of sums of `terms` products, from the errors of what is multiplied and from all magnitudes.
  static Vector Bounds(Vector errors, const Vector& magnitudes, int64_t terms) {
    for (size_t i = 0; i < errors.size(); ++i) errors[i] += Gamma(terms + 1) * magnitudes[i];
    return errors;
  }

  HeadShape shape;
  LinearShape linear;
  Vector x, w;  // w (F, C)
  Vector logits;
  reference::LossOutput loss;
  Vector dx, dw;
  Vector logit_bounds, dx_bounds, dw_bounds;
  double loss_bound = 0.0;
};

void ExpectMatchesReference(const Problem& problem) {
  const Expected expected(problem);
  OnDevice device(problem);
  const auto [result, dx, dw] = device.Backward(Pass::kSplit);
  EXPECT_NEAR(result.f64()[0], expected.loss.loss, expected.loss_bound);
  EXPECT_EQ(result.f64()[1], static_cast<double>(expected.loss.correct));
  EXPECT_THAT(TestDevice::Values(dx), CloseTo(expected.dx, expected.dx_bounds));
  EXPECT_THAT(TestDevice::Values(dw), CloseTo(expected.dw, expected.dw_bounds));
  const auto forwarded = device.Forward();
  EXPECT_EQ(BytesOf(forwarded.result), BytesOf(result));
  EXPECT_THAT(TestDevice::Values(forwarded.logits),
              CloseTo(expected.logits, expected.logit_bounds));
}

class CpuHead : public ::testing::TestWithParam<HeadShape> {
 protected:
  Problem problem_{GetParam()};
};

TEST_P(CpuHead, MatchesReference) { ExpectMatchesReference(problem_); }

TEST_P(CpuHead, PaddingCountsForNothing) {
  const int64_t padding = (problem_.shape.rows + 1) / 2;
  problem_.Pad(padding);
  ExpectMatchesReference(problem_);
  const Vector dx = TestDevice::Values(OnDevice(problem_).Backward(Pass::kFused).dx);
  EXPECT_THAT(Vector(dx.end() - padding * problem_.shape.features, dx.end()), Each(0.0));
}

TEST_P(CpuHead, FusedAndSplitGiveTheSameBits) {
  for (const bool accumulate : {false, true}) {
    OnDevice fused(problem_), split(problem_);
    const Gradients expected = split.Backward(Pass::kSplit, accumulate);
    const Gradients actual = fused.Backward(Pass::kFused, accumulate);
    EXPECT_EQ(BytesOf(actual.result), BytesOf(expected.result));
    EXPECT_EQ(BytesOf(actual.dx), BytesOf(expected.dx));
    EXPECT_EQ(BytesOf(actual.dw), BytesOf(expected.dw));
  }
}

TEST_P(CpuHead, AddsToTheGradientIfAsked) {
  Expected expected(problem_);
  for (size_t i = 0; i < expected.dw.size(); ++i) {
    const double start = static_cast<double>(problem_.dw[i]);
    expected.dw[i] += start;
    expected.dw_bounds[i] +=
        Gamma(problem_.shape.rows + 1) * (std::fabs(start) + std::fabs(expected.dw[i]));
  }
  OnDevice device(problem_);
  EXPECT_THAT(TestDevice::Values(device.Backward(Pass::kFused, /*accumulate=*/true).dw),
              CloseTo(expected.dw, expected.dw_bounds));
}

TEST_P(CpuHead, WhatIsNotWantedChangesNoBit) {
  for (const Pass pass : {Pass::kSplit, Pass::kFused}) {
    OnDevice with(problem_), without(problem_);
    const Gradients expected = with.Backward(pass);
    const Gradients actual = without.Backward(pass, /*accumulate=*/false, /*want_dx=*/false);
    EXPECT_EQ(BytesOf(actual.result), BytesOf(expected.result));
    EXPECT_EQ(BytesOf(actual.dw), BytesOf(expected.dw));
  }
  OnDevice device(problem_);
  const auto both = device.Forward();
  EXPECT_EQ(BytesOf(device.Forward(/*wants_logits=*/false).result), BytesOf(both.result));
  Problem predicted = problem_;
  predicted.valid_rows = 0;
  EXPECT_EQ(BytesOf(OnDevice(predicted).Forward().logits), BytesOf(both.logits));
}

TEST_P(CpuHead, AnyNumberOfThreadsGivesTheSameBits) {
  OnDevice one(problem_);
  const Gradients expected = one.Backward(Pass::kFused);
  for (const int threads : {2, 3}) {
    for (const Pass pass : {Pass::kSplit, Pass::kFused}) {
      OnDevice several(problem_, threads);
      const Gradients actual = several.Backward(pass);
      EXPECT_EQ(BytesOf(actual.result), BytesOf(expected.result)) << threads << " threads";
      EXPECT_EQ(BytesOf(actual.dx), BytesOf(expected.dx)) << threads << " threads";
      EXPECT_EQ(BytesOf(actual.dw), BytesOf(expected.dw)) << threads << " threads";
    }
  }
}

// Several tiles of rows, of classes and of features; lanes that do not fill a vector.
INSTANTIATE_TEST_SUITE_P(Shapes, CpuHead,
                         ::testing::Values(HeadShape{1, 1, 1}, HeadShape{1, 9, 700},
                                           HeadShape{5, 3, 1}, HeadShape{33, 20, 1201},
                                           HeadShape{300, 7, 10}, HeadShape{290, 24, 601},
                                           HeadShape{70, 410, 19}, HeadShape{12, 10, 40, 4},
                                           HeadShape{264, 5, 600, 132}));

TEST(CpuHeadTest, FirstOfSeveralLargestLogitsIsThePrediction) {
  Problem problem({.rows = 3, .features = 1, .classes = 2000});
  problem.x = {1.0F, 1.0F, 1.0F};
  std::fill(problem.w.begin(), problem.w.end(), 0.5F);
  for (const size_t c : {7, 9, 1900}) problem.w[c] = 0.75F;
  problem.labels = {7, 9, 1900};
  EXPECT_EQ(OnDevice(problem).Backward(Pass::kFused).result.f64()[1], 1.0);
  problem.w[1900] = 1.0F;
  EXPECT_EQ(OnDevice(problem).Forward().result.f64()[1], 1.0);
  std::fill(problem.w.begin(), problem.w.end(), -0.5F);
  problem.labels = {0, 1, 1999};
  EXPECT_EQ(OnDevice(problem).Forward().result.f64()[1], 1.0);
}

TEST(CpuHeadTest, SurvivesLogitsWhoseExponentialsOverflow) {
  Problem problem({.rows = 3, .features = 1, .classes = 3});
  problem.x = {1e4F, -1e4F, 300.0F};
  problem.w = {1.0F, -1.0F, 0.0F};
  problem.labels = {1, 1, 2};
  ExpectMatchesReference(problem);
}

TEST(CpuHeadTest, OnlyPaddingIsALossOfZero) {
  Problem problem({.rows = 3, .features = 2, .classes = 4});
  problem.Pad(3);
  OnDevice device(problem);
  const Gradients gradients = device.Backward(Pass::kFused);
  EXPECT_THAT(TestDevice::Values(gradients.result), ElementsAre(0.0, 0.0));
  EXPECT_THAT(TestDevice::Values(gradients.dw), Each(0.0));
}

TEST(CpuHeadTest, NotANumberIsSeenInTheLoss) {
  Problem problem({.rows = 40, .features = 2, .classes = 700});
  problem.w[2 * 650] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(OnDevice(problem).Forward().result.f64()[0]));
  EXPECT_TRUE(std::isnan(OnDevice(problem).Backward(Pass::kFused).result.f64()[0]));
}

TEST(CpuHeadTest, ScratchDoesNotGrowWithTheRows) {
  TestDevice device;
  const auto bytes = [&](int64_t rows) {
    return device.ops().Create(HeadShape{rows, 64, 5000}).value()->workspace_bytes();
  };
  EXPECT_LT(bytes(16), bytes(1024));
  EXPECT_EQ(bytes(4096), bytes(1024));
}

TEST(CpuHeadTest, ShapesThatAreNoneAreInvalid) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  TestDevice device;
  for (const HeadShape shape :
       {HeadShape{0, 1, 1}, HeadShape{1, 0, 1}, HeadShape{1, 1, 0}, HeadShape{-1, 1, 1},
        HeadShape{kHuge, 1, 1}, HeadShape{1, kHuge, 1}, HeadShape{1, 1, kHuge},
        HeadShape{6, 2, 2, 4}, HeadShape{6, 2, 2, 0}}) {
    EXPECT_THAT(device.ops().Create(shape), StatusIs(absl::StatusCode::kInvalidArgument))
        << shape.rows << " rows, " << shape.features << " features, " << shape.classes
        << " classes, " << shape.positions << " positions";
  }
}

}  // namespace
}  // namespace stagecoach::kernels::head_test
